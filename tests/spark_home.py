"""A home of Spark whose Python processes start with a quarter of the work.

Spark puts `python/lib/pyspark.zip` of its home before all else on the path of the Python processes that it starts.
Nothing in that archive is compiled: each of them compiles 240 modules, half a second of processor time, and a query has
four or more. In the home that is made here that place has no PySpark, so they import the installed one, which is
compiled. What Spark forks finds imported what nearly all of them import; planners are forked by `forked_planners`.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from tests import forked_planners

__all__ = ["FILE_MANAGER", "RELEASE", "make_spark_home", "use_spark_home"]

RELEASE = ".".join(version("pyspark").split(".")[:2])
"""That of the PySpark in use, such as `4.3`."""

_PACKAGE = "org.apache.spark.sql.execution.streaming" + ("" if RELEASE == "4.0" else ".checkpointing")
FILE_MANAGER = f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"
"""For a checkpoint on a disk; the default starts a process for each file that it renames, to see if it is a link."""

_HOME = Path(sys.prefix) / "spark"

# Python imports a module of this name at its start. It must not fail where this library is what a test takes away.
_SITECUSTOMIZE = f'''"""Written by tests/spark_home.py."""

import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    import contextlib
    import gc

    with contextlib.suppress(ImportError):
        import pyspark.sql.worker.create_data_source
        import pyspark.sql.worker.lookup_data_sources
        import pyspark.sql.worker.plan_data_source_read
        import pyspark.worker
        import streaming_source.connectors.files
        import streaming_source.spark.datasource
    # A collection in a fork would write to, and so copy, the pages that it shares with the others.
    gc.freeze()
elif sys.orig_argv[1:3] == ["-m", "{forked_planners.RUNNER}"]:
    from forked_planners import hand_over

    hand_over()
'''


def make_spark_home() -> None:
    """Write that home into the environment; all but what is said above is linked to the installed PySpark's."""
    import pyspark

    shutil.rmtree(_HOME, ignore_errors=True)
    first_on_the_path = _HOME / "python" / "lib" / "pyspark.zip"
    first_on_the_path.mkdir(parents=True)
    (first_on_the_path / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    shutil.copy(forked_planners.__file__, first_on_the_path)
    for name in ("bin", "data", "jars", "sbin"):
        (_HOME / name).symlink_to(Path(pyspark.__file__).parent / name)


def use_spark_home() -> None:
    """Let the Sparks that this process and its children start have that home, if it was made."""
    if _HOME.is_dir():
        os.environ.setdefault("SPARK_HOME", str(_HOME))
