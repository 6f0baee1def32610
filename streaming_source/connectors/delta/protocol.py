"""Which tables can be read: the features of the protocol that a reader must understand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from streaming_source.exceptions import UnsupportedOperationError

_UNDERSTOOD: Final = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview"),
        *("v2Checkpoint", "vacuumProtocolCheck"),
    }
)

_READER_VERSION: Final = 3

_INSTEAD: Final = {
    "catalogManaged": "its commits are known to its catalog alone",
    "catalogOwned-preview": "its commits are known to its catalog alone",
    "variantType": "columns of variants are not read",
    "variantType-preview": "columns of variants are not read",
    "variantShredding-preview": "columns of variants are not read",
}


def check_features(title: str, version: int, reader_version: int, features: Collection[str]) -> None:
    """Raise an `UnsupportedOperationError` where a table needs a reader that knows more."""
    unknown = sorted({*features} - _UNDERSTOOD)
    if reader_version > _READER_VERSION:
        unknown.append(f"minReaderVersion {reader_version}")
    if unknown:
        why = next((f": {_INSTEAD[name]}" for name in unknown if name in _INSTEAD), "")
        raise UnsupportedOperationError(
            f"{title}, version {version}, needs a reader that understands {', '.join(unknown)}{why}. Read it with "
            "spark.readStream.format('delta') and withWatermark, or drop the feature from the table (ALTER TABLE ... "
            "DROP FEATURE)"
        )


def check_protocol(title: str, version: int, action: Mapping[str, Any]) -> None:
    """Do so of a `protocol` action of the log."""
    features = map(str, action.get("readerFeatures") or ())
    check_features(title, version, action.get("minReaderVersion") or 1, [*features])
