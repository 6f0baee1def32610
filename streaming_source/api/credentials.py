"""Credentials that expire: options that a function of the user's returns, wherever a source connects."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, TypeAlias
from uuid import uuid4

from alignment.shown import log_of
from streaming_source.exceptions import OptionError, SourceError

_log = log_of(__name__)

MakeCredentials: TypeAlias = Callable[[], Any]
"""Returns options by name, as in `{"storage.access_key": "..."}`; or a tuple of these and when they expire."""

_EARLY_S: Final = 300.0
_EARLY_SHARE: Final = 0.25
"""Credentials are renewed so long before they expire, or by this share of the time that they are valid for."""

_RETRY_S: Final = 10.0
_YEAR_5138_S: Final = 1e11


@dataclass(unsafe_hash=True)
class Credentials:
    """Options from a function of the user's, called in the planner and in tasks, and again before they expire.

    `make` takes no arguments. It returns a dictionary of options as `.option` takes them, or a tuple of that and when
    they expire: a `datetime` with a zone, or seconds since the epoch, None for never. What it returns goes before
    options of the same names. A process calls it once for all that connect there, and again when a quarter of the time
    of validity is left, or 5 minutes if that is less. Where that call fails, the credentials at hand are used until
    they expire, and it is tried again. It is equal to its copies in other processes, by its name.

    Examples
    --------
    >>> Credentials(lambda: {"storage.access_key": "me"}).current(("storage.",))
    {'storage.access_key': 'me'}
    """

    make: MakeCredentials | None = field(default=None, repr=False, compare=False)
    name: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        if self.make is not None and not callable(self.make):
            raise OptionError(
                f"credentials = {type(self.make).__name__}: must be a function without arguments that returns a "
                "dictionary of options; give the function itself"
            )

    @classmethod
    def of_name(cls, option: str, text: str) -> Credentials:
        """Those of a function that is imported when they are first needed, by `module:function`."""
        module, _, function = text.strip().partition(":")
        if not module or not function:
            raise OptionError(
                f"option {option} = {text!r}: must be 'module:function', the name of a function without arguments that "
                "returns a dictionary of options; write it so"
            )
        return cls(name=text.strip())

    @classmethod
    def of(cls, given: Credentials | MakeCredentials | str | None) -> Credentials | None:
        """From what a user gives: a function, or its name as `module:function`."""
        if given is None or isinstance(given, Credentials):
            return given
        return cls.of_name("credentials", given) if isinstance(given, str) else cls(given)

    def current(self, prefixes: tuple[str, ...]) -> dict[str, str]:
        """Options that are valid now, by name; each name must begin with one of `prefixes`.

        A `SourceError` if there are none: without a word of what the function raised, which may quote a secret.
        """
        held = _held_of(self.name)
        with held.lock:
            now_s = time.time()
            if now_s >= held.renew_at_s:
                try:
                    held.keep(*self._made(now_s), now_s)
                except SourceError as error:
                    if now_s >= held.expires_at_s:
                        raise
                    held.renew_at_s = now_s + _RETRY_S
                    _log.warning("%s; those at hand are valid for %d s more", error, held.expires_at_s - now_s)
            options = held.options
        for name in options:
            if not name.startswith(prefixes):
                known = " or ".join(prefixes)
                raise self._failed(f"returned the option {name!r}; let each name begin with {known}, as with .option()")
        return options

    def _made(self, now_s: float) -> tuple[dict[str, str], float | None]:
        make = self.make
        if make is None:
            make = imported_function(f"option credentials = {self.name!r}", self.name)
        try:
            made = make()
        except Exception as error:  # whatever the user's function raises
            raise self._failed(f"raised {type(error).__name__}; call it by itself to see why") from None
        options, expires = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(options, Mapping):
            raise self._failed(
                f"returned a {type(options).__name__}; let it return a dictionary of options, or a tuple of that and "
                "when they expire"
            )
        for name, value in options.items():
            if not isinstance(name, str) or not isinstance(value, str):
                kinds = f"{type(name).__name__} and {type(value).__name__}"
                raise self._failed(f"returned an entry of {kinds}; let all names and values be text")
        expires_at_s = self._seconds(expires)
        if expires_at_s is not None and expires_at_s <= now_s:
            raise self._failed(
                f"returned credentials that expired {now_s - expires_at_s:.0f} s ago; let it return new ones, and "
                "compare the clocks"
            )
        return dict(options), expires_at_s

    def _seconds(self, expires: Any) -> float | None:
        if isinstance(expires, datetime) and expires.tzinfo is not None:
            return expires.timestamp()
        is_number = isinstance(expires, int | float) and not isinstance(expires, bool)
        if expires is None or (is_number and expires < _YEAR_5138_S):
            return expires if expires is None else float(expires)
        raise self._failed(
            "returned as the time of expiry neither seconds since the epoch nor a datetime with a zone; return one of "
            "these, or None"
        )

    def _failed(self, why: str) -> SourceError:
        return SourceError(f"the credentials function {self.name} {why}")


def imported_function(what: str, name: str) -> Callable[..., Any]:
    """The function `module:function`; a `SourceError` that begins with `what` if Python cannot import it here."""
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SourceError(
            f"{what}: cannot be imported here ({error}); install the module for the driver and the executors, or give "
            "the source the function itself"
        ) from None
    return found


class _Held:
    """The last answer of a function, in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.options: dict[str, str] = {}
        self.expires_at_s = self.renew_at_s = 0.0

    def keep(self, options: dict[str, str], expires_at_s: float | None, now_s: float) -> None:
        if expires_at_s is None:
            self.options, self.expires_at_s, self.renew_at_s = options, float("inf"), float("inf")
            return
        early_s = min(_EARLY_S, (expires_at_s - now_s) * _EARLY_SHARE)
        self.options, self.expires_at_s, self.renew_at_s = options, expires_at_s, expires_at_s - early_s


@lru_cache(maxsize=64)
def _held_of(name: str) -> _Held:
    return _Held()
