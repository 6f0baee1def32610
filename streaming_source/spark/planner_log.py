"""The log of a planner process, on standard error, which Spark's driver copies to its own standard error."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import struct
import sys
import termios
import time
from typing import Final, TextIO

__all__ = ["log_lines_of"]

_PATIENCE_S: Final = 1.0
"""How long to wait for the driver to read a line."""


class _TakenLines(logging.StreamHandler[TextIO]):
    """Waits until the driver has read each line: lines still in the pipe when the driver ends the process are lost.

    An AvailableNow run logs which records it leaves unread right before the driver ends the process.
    """

    def flush(self) -> None:
        super().flush()
        deadline = time.monotonic() + _PATIENCE_S
        while _is_untaken(self.stream) and time.monotonic() < deadline:
            time.sleep(0.001)


def log_lines_of(source: str) -> None:
    """Put time (UTC), level and source before each line, unless logging is set up in this process already.

    A planner process plans one source of one query. Spark does not pass the query's name: lines name the data read.
    """
    logger = logging.getLogger("streaming_source")
    if logger.hasHandlers():
        return
    handler = _TakenLines(sys.stderr)
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ %(levelname)s {source}: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger.addHandler(handler)


def _is_untaken(stream: TextIO) -> bool:
    """Whether a pipe has unread bytes; False if that is not known."""
    try:
        pipe = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return False
        (size,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    except (OSError, ValueError):
        return False
    return bool(size)
