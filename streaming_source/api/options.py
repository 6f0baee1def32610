"""Options as Spark's users write them: strings, case-insensitive, an unknown one refused with the nearest name.

An option that sets an attribute of a frozen dataclass is declared once, on that attribute's field:

    max_rows: int | None = field(default=None, metadata=option("maxRows", integer(1), "At most so many."))

`OptionSet.of` collects those of a class, with the fields' defaults; `arguments` makes keywords of parsed values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from numbers import Integral, Real
from typing import Any, Final, get_args, get_type_hints

from alignment.durations import parse_duration_us
from alignment.exceptions import InvalidArgumentError
from streaming_source.exceptions import OptionError

Parser = Callable[[str, str], Any]
"""`(option name, value) -> parsed value`; raises `OptionError`."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    `parse` makes a value of the user's string, `doc` is one sentence for the documentation, which writes the default as
    `default_text`, or as it is without one. `same_as` is the option that this is another name of: its value is that
    one's. Values are secret of the names, in lower case, in which `secret` is found. One that `is_private` is set by a
    call of this library and read by another: neither the documentation nor an error names it. One that is `fixed` stays
    the same for the life of a checkpoint, since else this would be so.
    """

    name: str
    parse: Parser
    doc: str
    default: Any = None
    default_text: str = ""
    same_as: str | None = None
    secret: re.Pattern[str] | None = None
    is_private: bool = False
    fixed: str = ""


class OptionSet:
    """The options that a format takes, no name twice.

    An option whose name ends in `.*` takes all names that begin so: its value is a dictionary of the rests of those
    names, with their values. `foreign` are names that other systems have and users bring along (`cloudFiles.*` for all
    that begin so), with what to do instead. A name that is an option counts as that. `more` returns options that take
    long to import: it is called where a name is given that is none of the others, or all are listed.

    Examples
    --------
    >>> options = OptionSet([Option("maxRows", integer(1), "At most so many."), Option("path", text, "Where.")])
    >>> options.parse({"maxrows": "5"})
    {'maxRows': 5, 'path': None}
    >>> options.parse({"maxRow": "5"})
    Traceback (most recent call last):
    streaming_source.exceptions.OptionError: unknown option 'maxRow'; did you mean maxRows?
    """

    def __init__(
        self,
        options: Iterable[Option],
        foreign: Mapping[str, str] | None = None,
        *,
        more: Callable[[], Sequence[Option]] | None = None,
    ) -> None:
        written = (replace(one, default_text=one.default_text or _default_text(one.default)) for one in options)
        self._options = {option.name.lower(): option for option in written}
        self._foreign = {name.lower(): advice for name, advice in (foreign or {}).items()}
        self._prefixes = tuple(name[:-1] for name in self._options if name.endswith(".*"))
        self._more = more

    @classmethod
    def of(cls, kind: type[Any]) -> OptionSet:
        """Those that are declared on the fields of a dataclass, in their order; defaults are the fields'."""
        defaults = ((one, None if one.default is MISSING else one.default) for one in fields(kind))
        declared = ((one.metadata["option"], default) for one, default in defaults if "option" in one.metadata)
        return cls(replace(option, default=default) for option, default in declared)

    def __iter__(self) -> Iterator[Option]:
        self._load_more()
        return iter(self._options.values())

    def __or__(self, other: OptionSet) -> OptionSet:
        more = [one._more for one in (self, other) if one._more is not None]
        return OptionSet(
            [*self._options.values(), *other._options.values()],
            {**self._foreign, **other._foreign},
            more=(lambda: [option for load in more for option in load()]) if more else None,
        )

    def _load_more(self) -> Sequence[Option]:
        """Return the options that were not known before."""
        found = [option for option in self._more() if option.name.lower() not in self._options] if self._more else []
        self._more = None
        self._options.update((option.name.lower(), option) for option in found)
        return found

    def is_secret(self, name: str) -> bool:
        """Return whether the value of the option of this name is to be shown nowhere."""
        low = name.lower()
        if low not in self._options:
            self._load_more()
        prefix = next((prefix for prefix in self._prefixes if low.startswith(prefix)), None)
        option = self._options.get(low) or (None if prefix is None else self._options[f"{prefix}*"])
        return option is not None and option.secret is not None and option.secret.search(low) is not None

    def parse(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Parsed values by documented name, defaults filled in.

        An `OptionError` for an unknown name (the nearest known one is offered), one given twice in different case, or a
        value that is not of the option's kind.
        """
        values = {option.name: option.default for option in self._options.values()}
        seen: dict[str, tuple[str, str]] = {}
        for name, value in given.items():
            option = self._options.get(name.lower())
            prefix = next((prefix for prefix in self._prefixes if name.lower().startswith(prefix)), None)
            if option is None and prefix is not None:
                option = self._options[f"{prefix}*"]
                values[option.name] = {**values[option.name], name[len(prefix) :]: option.parse(name, str(value))}
                continue
            if option is None:
                values.update((one.name, one.default) for one in self._load_more())
                option = self._options.get(name.lower())
            if option is None:
                raise OptionError(self._unknown(name))
            target = option.same_as or option.name
            before, other = seen.setdefault(target, (option.name, value))
            if other != value:
                raise OptionError(
                    f"option {option.name} is given twice, as {other!r} and as {value!r}: give it once"
                    if before == option.name
                    else f"options {before} = {other!r} and {option.name} = {value!r} are the same: give one of them"
                )
            values[option.name] = values[target] = option.parse(option.name, str(value))
        return values

    def _unknown(self, name: str) -> str:
        for foreign, advice in self._foreign.items():
            if fnmatchcase(name.lower(), foreign):
                return f"option {name} is not one of this source: {advice}"
        public = {low: option.name for low, option in self._options.items() if not option.is_private}
        nearest = difflib.get_close_matches(name.lower(), public, n=1, cutoff=0.6)
        if nearest:
            return f"unknown option {name!r}; did you mean {public[nearest[0]]}?"
        known = ", ".join(sorted(option.name for option in self if not option.is_private))
        return f"unknown option {name!r}. Known options: {known}. Take one of these, or leave it out"


def option(name: str, parse: Parser, doc: str, default_text: str = "", **more: Any) -> dict[str, Option]:
    """Metadata of a dataclass's field that this option sets, with `more` attributes of an `Option`.

    Without a `default_text` its default is written as it is.
    """
    return {"option": Option(name, parse, doc, default_text=default_text, **more)}


def option_field(
    default: object,
    name: str,
    parse: Parser,
    doc: str,
    default_text: str = "",
    *,
    is_private: bool = False,
    fixed: str = "",
    **metadata: Any,
) -> Any:
    """A field of a dataclass with a default, the option that sets it, and further metadata."""
    declared = option(name, parse, doc, default_text, is_private=is_private, fixed=fixed)
    return field(default=default, metadata={**declared, **metadata})


def flag_field(name: str, doc: str, default_text: str = "", *, default: bool = False, **more: Any) -> Any:
    """The same of a truth, by default false."""
    return option_field(default, name, boolean, doc, default_text, **more)


def duration_field(default: object, name: str, minimum_us: int, doc: str, *, optional: bool = False) -> Any:
    """The same of a duration of at least this, or if it is `optional` of `none`; see `durations_as_timedelta`."""
    parse_us = optional_duration(minimum_us) if optional else duration(minimum_us)

    def parse(name: str, value: str) -> timedelta | None:
        parsed_us = parse_us(name, value)
        return None if parsed_us is None else timedelta(microseconds=parsed_us)

    return option_field(default, name, parse, doc, minimum_us=minimum_us)


def durations_as_timedelta(value: Any) -> None:
    """Let the durations of a frozen dataclass be equal however they were written; called in `__post_init__`."""
    for one in fields(value):
        given = getattr(value, one.name)
        if "minimum_us" in one.metadata and not (given is None and one.default is None):
            duration_us = _duration_us(one.name, given, one.metadata["minimum_us"])
            object.__setattr__(value, one.name, timedelta(microseconds=duration_us))


def check_plain_types(value: Any) -> None:
    """Raise an `OptionError` where a truth or number of a dataclass is given as something else; in `__post_init__`.

    Text is for the option of the same name: as an argument `"false"` would count as true.
    """
    kind: Any = type(value)
    for name, kinds in _plain_types(kind).items():
        given = getattr(value, name)
        fits = isinstance(given, bool) if kinds == {bool} else isinstance(given, tuple(kinds))
        if not fits or (isinstance(given, bool) and bool not in kinds):
            what = " or ".join(_KINDS[kind] for kind in _KINDS if kind in kinds)
            raise OptionError(f"{name} = {given!r}: must be {what}, not {type(given).__name__}; give it as such")


_KINDS: Final = {bool: "True or False", Integral: "a whole number", Real: "a number", type(None): "None"}


@cache
def _plain_types(kind: type[Any]) -> dict[str, frozenset[type[Any]]]:
    """Name of each field that holds a truth or a number, or None instead -> the types that it takes."""
    numbers = {bool: bool, int: Integral, float: Real, type(None): type(None)}
    hints = {name: {*(get_args(hint) or [hint])} for name, hint in get_type_hints(kind).items()}
    declared = {one.name for one in fields(kind)}
    return {
        name: frozenset(numbers[hint] for hint in taken)
        for name, taken in hints.items()
        if name in declared and taken <= numbers.keys()
    }


def option_names(kind: type[Any]) -> dict[str, str]:
    """Name of the field of a dataclass -> name of the option that sets it."""
    return {field.name: field.metadata["option"].name for field in fields(kind) if "option" in field.metadata}


def arguments(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Parsed values of `OptionSet.of(kind)` as keywords of the dataclass.

    An error if one is missing that has no default.
    """
    for one in fields(kind):
        has_default = (one.default, one.default_factory) != (MISSING, MISSING)
        if "option" in one.metadata and not has_default and values[one.metadata["option"].name] is None:
            declared = one.metadata["option"]
            raise OptionError(f"option {declared.name} is missing: {declared.doc} Give it with .option()")
    return {field: values[name] for field, name in option_names(kind).items()}


def _default_text(default: object) -> str:
    if default is None or default in ((), {}):
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def credentials_option(names: str) -> Option:
    """The option `credentials` of a format; `names` are the options that the function may return."""
    return Option(
        "credentials",
        _credentials,
        f"For secrets that expire: `module:function` that returns a dictionary of {names}, or a tuple of that and when "
        "it expires. Called on the driver and on executors, and again before it expires.",
    )


def _credentials(name: str, value: str) -> Any:
    # Imported here: few sources have credentials that expire.
    from streaming_source.api.credentials import Credentials

    return Credentials.of_name(name, value)


def text(name: str, value: str) -> str:
    """Any string but an empty one."""
    if not value.strip():
        raise OptionError(f"option {name} is empty; give it a value or leave it out")
    return value


def any_text(name: str, value: str) -> str:
    """Any text, also an empty one."""
    return value


def boolean(name: str, value: str) -> bool:
    """`true` or `false`."""
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise OptionError(f"option {name} = {value!r}: must be true or false")


def integer(minimum: int) -> Parser:
    """A whole number of at least `minimum`."""

    def parse(name: str, value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise OptionError(f"option {name} = {value!r}: must be a whole number, like 10000") from None
        if number < minimum:
            raise OptionError(f"option {name} = {value!r}: must be at least {minimum}")
        return number

    return parse


def choice(*values: str) -> Parser:
    """One of `values`, in any case."""

    def parse(name: str, value: str) -> str:
        for candidate in values:
            if candidate.lower() == value.strip().lower():
                return candidate
        raise OptionError(f"option {name} = {value!r}: must be one of {', '.join(values)}")

    return parse


def duration(minimum_us: int = 0) -> Parser:
    """A Spark-style duration, in microseconds."""
    return lambda name, value: _duration_us(f"option {name}", value, minimum_us)


def optional_duration(minimum_us: int = 0) -> Parser:
    """A Spark-style duration, in microseconds, or `none`."""
    parse = duration(minimum_us)
    return lambda name, value: None if value.strip().lower() == "none" else parse(name, value)


def _duration_us(name: str, value: timedelta | str, minimum_us: int) -> int:
    try:
        return parse_duration_us(value, name=name, minimum_us=minimum_us)
    except InvalidArgumentError as error:
        raise OptionError(str(error)) from None
