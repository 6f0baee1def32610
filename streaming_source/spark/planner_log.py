"""The log of a planner process, which goes to its standard error: Spark's driver passes that on to its own."""

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
"""How long a line may wait until the driver has taken it."""


class _TakenLines(logging.StreamHandler[TextIO]):
    """Waits until the driver has taken each line: what is still in the pipe when it ends the process is lost.

    The line on what an AvailableNow run leaves unread is written right before that end.
    """

    def flush(self) -> None:
        super().flush()
        deadline = time.monotonic() + _PATIENCE_S
        while _is_untaken(self.stream) and time.monotonic() < deadline:
            time.sleep(0.001)


def log_lines_of(source: str) -> None:
    """Put time (UTC), level and source before each line, unless logging is set up in this process already.

    A planner process plans one source of one query, whose name Spark does not give it: the line has what is read.
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
    """Whether a pipe holds what its reader has not taken yet; False where that cannot be known."""
    try:
        pipe = stream.fileno()
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return False
        (size,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    except (OSError, ValueError):
        return False
    return bool(size)
