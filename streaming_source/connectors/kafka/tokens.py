"""Tokens of OAUTHBEARER, made by a function of the user's wherever a client connects."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeAlias
from uuid import uuid4

from streaming_source.exceptions import OptionError, SourceError

__all__ = ["MakeToken", "TokenProvider"]

MakeToken: TypeAlias = Callable[[], tuple[Any, ...]]
"""Returns a token and when it expires, in seconds since the epoch; a principal and extensions may follow."""

_YEAR_5138_S: Final = 1e11


class TokenProvider:
    """Makes tokens; equal to its copies in other processes, so that clients are kept by it.

    Parameters
    ----------
    make
        Makes one; called by every client when it connects, and before a token expires. It travels to the executors.
    name
        Tells it from others; by default no other is equal.

    Attributes
    ----------
    trouble
        Why the last call brought no token, without a word of what it raised: that may quote a secret.
    """

    def __init__(self, make: MakeToken, name: str | None = None) -> None:
        if not callable(make):
            raise OptionError(
                f"token_provider = {type(make).__name__}: must be a function without arguments that returns a token "
                "and the second since the epoch at which it expires"
            )
        self._make = make
        self._name = name or uuid4().hex
        self.trouble = ""

    @classmethod
    def of_name(cls, option: str, text: str) -> TokenProvider:
        """That of an importable name, `module:function`.

        Raises
        ------
        OptionError
            If there is none of that name.
        """
        module, _, function = text.partition(":")
        try:
            return cls(getattr(import_module(module), function), text)
        except (ImportError, AttributeError, ValueError) as error:
            raise OptionError(
                f"option {option} = {text!r}: must be 'module:function' that Python can import on the driver and the "
                f"executors ({error}); install the module there, or give KafkaSource the function itself"
            ) from None

    def __call__(self, settings: str) -> tuple[Any, ...]:
        """A token, as the client wants it of its `oauth_cb`."""
        try:
            made = self._make()
        except Exception as error:  # whatever the user's function raises
            raise self._failed(f"it raised {type(error).__name__}; call it by itself to see why") from None
        if not (isinstance(made, tuple) and len(made) >= 2 and isinstance(made[0], str)):
            raise self._failed("it must return a tuple: the token, and the second since the epoch at which it expires")
        if not isinstance(made[1], (int, float)) or made[1] > _YEAR_5138_S:
            raise self._failed("it must say in seconds since the epoch when the token expires, not in milliseconds")
        self.trouble = ""
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenProvider) and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"TokenProvider({self._name!r})"

    def _failed(self, why: str) -> SourceError:
        self.trouble = f"; the token provider failed: {why}"
        return SourceError(self.trouble[2:])
