"""What Spark knows of a format: a class that does nothing but find the rest when the format is used.

Spark imports all modules named `pyspark_...`, to find data sources in them, before it knows which of them is used. Ours
are in `formats/`, which is no package: installed, they are top-level modules. So nothing is imported here that takes
time, is missing or does not fit: an error here would hide every other data source from Spark as well.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from streaming_source.spark.late_reader import LateStreamReader
    from streaming_source.spark.readers import AlignedBatchReader, AlignedStreamReader, FailedStreamReader

__all__ = ["format_class"]


def format_class(format_name: str, content: bytes | None = None, driver: str | None = None) -> type[DataSource]:
    """A data source class that Spark pickles whole, so that it raises a clear error where this library is missing.

    A class that a module holds would be pickled by its name, and a worker without that module would fail in unpickling.
    `content` is pickled: what makes an `AlignedDataSource` of options; None for the formats that come with the library.
    `driver` is the Python of the driver, where the class is made there.
    """

    # In here, so that it travels with the class.
    @contextmanager
    def imports_kept() -> Iterator[None]:
        """Look for no garbage among what is imported for the first time: it stays, and a look takes a sixth of it."""
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

        def streamReader(self, schema: StructType) -> AlignedStreamReader | LateStreamReader | FailedStreamReader:
            # In a process of Spark's own, where what is imported now stays. Looking through all of it for garbage, as
            # happens every few micro-batches, takes longer than planning one.
            gc.freeze()
            try:
                return self._aligned.stream_reader(schema)
            except Exception as error:
                from streaming_source.spark.readers import FailedStreamReader

                return FailedStreamReader(error)

        def reader(self, schema: StructType) -> AlignedBatchReader:
            return self._aligned.batch_reader(schema)

    return Format
