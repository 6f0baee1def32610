"""What the lines look like that a planner logs: Spark takes them from its standard error as they are."""

from __future__ import annotations

import logging
import time
from typing import Final

__all__ = ["log_lines_of"]

_LOGGER: Final = "streaming_source"


def log_lines_of(source: str) -> None:
    """Let each line say time (UTC), level and source, unless somebody has set up logging in this process already.

    A planner process plans one source of one query. It does not learn the query's name: what tells queries apart is
    the id of the source, which stands in their offsets.
    """
    logger = logging.getLogger(_LOGGER)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ %(levelname)s {source}: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger.addHandler(handler)
