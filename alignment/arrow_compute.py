"""`pyarrow.compute`, imported when it is first used: to wrap all of its functions takes it 40 ms.

Spark starts a Python process for the schema of a source, one for its plans and one for each task, and not all of them
compute anything.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    return getattr(pyarrow.compute, name)
