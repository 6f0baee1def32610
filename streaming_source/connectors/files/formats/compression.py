"""Decompressing as a file is read: which codec, and what pyarrow can."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from streaming_source.exceptions import MalformedDataError

__all__ = ["COMPRESSIONS", "codec_of"]

COMPRESSIONS: Final = ("auto", "none", "gzip", "bz2", "lz4", "zstd", "brotli")
"""Values of option `compression`; `auto` goes by the ending of each file's name."""

_BY_ENDING: Final = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".lz4": "lz4",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".br": "brotli",
}
_NOT_STREAMED: Final = (".snappy", ".sz", ".deflate")


def codec_of(path: str, compression: str) -> str | None:
    """The codec of a file as pyarrow calls it; None where it is not compressed.

    Raises
    ------
    MalformedDataError
        If the name says that it is compressed in a way that cannot be read piece by piece, or the codec is missing in
        this build of pyarrow.
    """
    if compression == "auto":
        name = path.lower()
        if name.endswith(_NOT_STREAMED):
            raise MalformedDataError(
                f"{path}: pyarrow does not decompress this piece by piece; compress it with gzip, bz2, lz4 or zstd, or "
                "write Parquet, ORC or Arrow, which compress with snappy inside. If it is not compressed, set option "
                "compression = none"
            )
        codec = next((codec for ending, codec in _BY_ENDING.items() if name.endswith(ending)), None)
    else:
        codec = None if compression == "none" else compression
    if codec is not None and not pa.Codec.is_available(codec):
        raise MalformedDataError(f"{path} is compressed with {codec}, which this build of pyarrow cannot read")
    return codec
