"""Names and JSON that come out of data, checked before anything is opened, removed or made by them.

A path, an address or an id in a checkpoint, a table's metadata, an offset or another member's entry is data. Who can
write that must not decide which host gets this process's credentials, or which file it reads or removes: a place is one
below a root that an option names, a URI names a store and a path and not how that is opened, and an id has the form of
ours.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Collection
from math import isfinite
from typing import Any, Final, NamedTuple, NoReturn, Self

from streaming_source.exceptions import MalformedDataError

_STORES: Final = ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""Schemes of stores that data may name: nothing but an option says how they are opened."""
_AZURE: Final = ("abfs", "abfss")

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{0,255}(:[0-9]{1,5})?")
_AZURE_HOST: Final = re.compile(r"[A-Za-z0-9$-]{1,63}@[A-Za-z0-9]{1,63}(\.(dfs|blob)\.core\.windows\.net)?")
"""A container and an account. By another host the store's client would ask that host, with a token of this process."""

_ID: Final = re.compile(r"[0-9a-f]{12}|[0-9a-f]{32}")


class Location(NamedTuple):
    """The place of a file as data give it: the `scheme` of a store, its `host`, and a `path` that is not escaped.

    Of a local file the first two are empty.
    """

    scheme: str
    host: str
    path: str

    @classmethod
    def of(cls, text: str, named: Collection[str] = ()) -> Self:
        """Split a location; `named` are places that options name, whose schemes may be in it as well.

        Raises a `MalformedDataError` if it says more than which store and which path: a login, a query, another host.
        """
        scheme, colon, rest = text.partition(":")
        if not colon or "/" in scheme:
            return cls("", "", text)
        if scheme == "file":
            # Hadoop writes `file:/data`.
            return cls("", "", "/" + rest.lstrip("/"))
        host, _, path = rest.removeprefix("//").partition("/")
        known = {*_STORES, *(one.partition(":")[0] for one in named if ":" in one)}
        pattern = _AZURE_HOST if scheme in _AZURE else _HOST
        if not (_SCHEME.fullmatch(scheme) and scheme in known):
            raise MalformedDataError(
                f"a file is in a store of scheme {scheme[:32]!r}, which data may not choose ({', '.join(_STORES)} they "
                "may). Name it yourself, by an option or as an argument of the command"
            )
        if not pattern.fullmatch(host):
            raise MalformedDataError(
                f"the location of a file in {scheme} has more than a bucket and a path: a login, a query or a host of "
                "its own, which only options may have. Name it yourself, by an option or as an argument of the command"
            )
        return cls(scheme, host, path)

    @property
    def is_local(self) -> bool:
        """True if it is a path of the local file system."""
        return not self.scheme

    @property
    def root(self) -> str:
        """The URI of its store."""
        return f"{'s3' if self.scheme == 's3n' else self.scheme}://{self.host}/"


def as_place(text: str, named: Collection[str] = ()) -> str:
    """Return a path or URI out of data if it can be opened as a user's own can; see `Location.of` for `named`.

    Raises a `MalformedDataError` if it has more than a store and a path.
    """
    location = Location.of(text, named)
    if not location.is_local and ("?" in location.path or "#" in location.path):
        raise MalformedDataError(
            f"a location in {location.scheme} has a query or a fragment, which only options may have. Name it "
            "yourself, by an option or as an argument of the command"
        )
    return text


def path_below(root: str, path: str) -> str | None:
    """Return where a path out of data is below a root, without `..`; None if it is elsewhere, or the root itself.

    A relative path counts from the root. Links are not followed.
    """
    found = posixpath.normpath(posixpath.join(root, path))
    return posixpath.relpath(found, root) if _is_below(posixpath.normpath(root), found) and "\0" not in path else None


def is_relative(path: str) -> bool:
    """Return whether a path out of data stays below the directory from which it counts. Links are not followed."""
    return not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def is_stored_below(root: str, path: str) -> bool:
    """Return whether the directory of a local file, with all links followed, is a root or below it."""
    root, folder = os.path.realpath(root), os.path.realpath(os.path.dirname(path))
    return folder == root or _is_below(root, folder)


def as_id(text: object) -> str:
    """Return an id out of data that this library has made; a `MalformedDataError` for what may be a path."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise MalformedDataError(f"{str(text)[:80]!r} is no id of this library; restore what it is in from a copy")
    return text


def as_json(text: str | bytes, *, any_number: bool = False) -> Any:
    """Return the value of a JSON text; with `any_number` also of numbers that do not fit into 64 bits.

    Raises a `ValueError`, of one that is nested too deep as well.
    """
    try:
        if any_number:
            return json.loads(text)
        # As `json.loads` does, which makes a decoder for each text.
        decoded = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        return _DECODER.decode(decoded)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _integer(text: str) -> int:
    if not -(2**63) <= (number := int(text)) < 2**63:
        raise ValueError("a number has more than 64 bits")
    return number


def _finite(text: str) -> float:
    return number if isfinite(number := float(text)) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number, parse_int=_integer, parse_float=_finite)


def _is_below(root: str, path: str) -> bool:
    return path.startswith(f"{root.rstrip('/')}/") and path != root
