"""Where the source model meets Spark: data source, readers, offsets, watermark rows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from streaming_source.spark.exact_watermark import with_exact_watermark
    from streaming_source.spark.frame_reader import read_stream
    from streaming_source.spark.registration import from_source, register
    from streaming_source.spark.watermark_rows import required_delay

__all__ = ["from_source", "read_stream", "register", "required_delay", "with_exact_watermark"]

_MODULE_OF: Final = {
    "from_source": "registration",
    "read_stream": "frame_reader",
    "register": "registration",
    "required_delay": "watermark_rows",
    "with_exact_watermark": "exact_watermark",
}


def __getattr__(name: str) -> Any:
    # Lazily: the user's process needs these, and the processes that Spark starts do not.
    if name in _MODULE_OF:
        return getattr(import_module(f"streaming_source.spark.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
