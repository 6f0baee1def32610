"""Tokens of OAUTHBEARER, made by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, TypeAlias
from uuid import uuid4

from streaming_source.exceptions import OptionError, SourceError

MakeToken: TypeAlias = Callable[[], tuple[Any, ...]]
"""Returns a token and when it expires, in seconds since the epoch; a principal and extensions may follow."""

_YEAR_5138_S: Final = 1e11


@dataclass(unsafe_hash=True)
class TokenProvider:
    """Makes tokens of OAUTHBEARER by a function of the user's, wherever a client connects.

    Copies of it in other processes are equal, by `name`, so that clients can be kept by it. `trouble` is why the last
    call returned no token; it does not quote the error that was raised, which may have a secret.
    """

    make: MakeToken = field(repr=False, compare=False)
    name: str = field(default_factory=lambda: uuid4().hex)
    trouble: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise OptionError(
                f"token_provider = {type(self.make).__name__}: must be a function without arguments that returns a "
                "token and the second since the epoch at which it expires"
            )

    @classmethod
    def of_name(cls, option: str, text: str) -> TokenProvider:
        """Import `module:function`; raises an `OptionError` if that fails."""
        module, _, function = text.partition(":")
        try:
            return cls(getattr(import_module(module), function), text)
        except (ImportError, AttributeError, ValueError) as error:
            raise OptionError(
                f"option {option} = {text!r}: must be 'module:function' that Python can import on the driver and the "
                f"executors ({error}); install the module there, or give KafkaSource the function itself"
            ) from None

    def __call__(self, settings: str) -> tuple[Any, ...]:
        """Return a token, as `oauth_cb` of the client does."""
        try:
            made = self.make()
        except Exception as error:  # whatever the user's function raises
            raise self._failed(f"it raised {type(error).__name__}; call it by itself to see why") from None
        if not (isinstance(made, tuple) and len(made) >= 2 and isinstance(made[0], str)):
            raise self._failed("it must return a tuple: the token, and the second since the epoch at which it expires")
        if not isinstance(made[1], (int, float)) or made[1] > _YEAR_5138_S:
            raise self._failed("it must give the expiry of the token in seconds since the epoch, not in milliseconds")
        self.trouble = ""
        return made

    def _failed(self, why: str) -> SourceError:
        self.trouble = f"; the token provider failed: {why}"
        return SourceError(self.trouble[2:])
