"""The class by which Spark knows a format; it imports the implementation when the format is used.

To find data sources, Spark imports all modules named `pyspark_...`, whichever of them a query uses. Ours are in
`formats/`, which is no package: installed, they are top-level modules. So this module imports nothing that is slow, may
be missing or may be incompatible: an error here would hide every other data source from Spark as well.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from streaming_source.spark.readers import AlignedBatchReader


def format_class(format_name: str, content: bytes | None = None, driver: str | None = None) -> type[DataSource]:
    """Return a data source class that Spark pickles by value: workers without this library raise a clear error.

    A class at module level would be pickled by its name, and a worker without that module would fail in unpickling.
    `content` is a pickled function that makes an `AlignedDataSource` from options; None for the library's own formats.
    `driver` is the driver's Python, if the class is made on the driver.
    """

    # Defined in the function, so that it is pickled with the class.
    @contextmanager
    def imports_kept() -> Iterator[None]:
        """Suspend garbage collection during the first import: modules stay, and it takes a sixth of the time."""
        if "streaming_source.spark.datasource" in sys.modules or not gc.isenabled():
            yield
            return
        gc.disable()
        try:
            yield
            gc.freeze()
        finally:
            gc.enable()

    class Format(DataSource):
        def __init__(self, options: Any) -> None:
            with imports_kept():
                try:
                    from streaming_source.spark.datasource import make_data_source
                except ModuleNotFoundError as error:
                    there = "" if driver is None else f"; the driver runs {driver}"
                    raise ModuleNotFoundError(
                        f"Spark's workers run {sys.executable} (Python {sys.version.split()[0]}), which has no module "
                        f"{error.name!r}{there}.\nInstall spark-watermark-alignment for the workers, or set "
                        "PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has it, before the session starts",
                        name=error.name,
                    ) from None
                self._aligned = make_data_source(format_name, content, dict(options))

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> StructType:
            return self._aligned.schema()

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            # This runs in a planner process, where modules imported so far stay. A full garbage collection, which comes
            # every few micro-batches, would take longer over them than planning a micro-batch.
            gc.freeze()
            try:
                return self._aligned.stream_reader(schema)
            except Exception as error:
                from streaming_source.spark.readers import FailedStreamReader

                return FailedStreamReader(error)

        def reader(self, schema: StructType) -> AlignedBatchReader:
            return self._aligned.batch_reader(schema)

    return Format
