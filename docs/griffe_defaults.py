"""Extension of griffe: the default of a field that is an option is its value, not the call that declares the option."""

from __future__ import annotations

from typing import Any

import griffe

_DECLARE = ("option_field", "duration_field", "_ranged")


class OptionDefaults(griffe.Extension):
    """Shows `bounded: bool = False` where the code has `bounded: bool = option_field(False, ...)`."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the first argument of the call."""
        value = attr.value
        if (
            isinstance(value, griffe.ExprCall)
            and str(value.function).rpartition(".")[2] in _DECLARE
            and value.arguments
        ):
            first = value.arguments[0]
            attr.value = first.value if isinstance(first, griffe.ExprKeyword) else first
