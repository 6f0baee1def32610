"""Our formats for `spark.readStream`, and frames from a `Source` object."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

from alignment.strategy import WatermarkStrategy
from streaming_source.api import Boundedness, Source
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS, AlignedDataSource
from streaming_source.spark.exact_watermark import exact_frame
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, STRATEGY_OPTIONS, frame_options, read_rules
from streaming_source.spark.watermark_rows import EMITTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["checked_name", "from_source", "register", "register_once"]

_registered: Final[WeakSet[Any]] = WeakSet()
"""Sessions that know our formats."""


def register(spark: SparkSession) -> None:
    """Make the formats `aligned_files`, `aligned_kafka` and `aligned_datagen` known to a session. May be called again.

    Works under Spark Connect as well; the workers' Python must have this library installed.
    """
    for name in FORMATS:
        spark.dataSource.register(_data_source(name, driver=sys.executable, driver_host=_driver_host(spark)))
    _registered.add(spark)


def register_once(spark: SparkSession) -> None:
    """The same, unless it was done for this session."""
    if spark not in _registered:
        register(spark)


def checked_name(name: str) -> str:
    """Of a source in a query, unless it is none.

    Raises
    ------
    OptionError
        If it is not of letters, digits and underscores.
    """
    if not name.replace("_", "").isalnum():
        raise OptionError(f"name = {name!r}: must be of letters, digits and underscores")
    return name


def from_source(
    spark: SparkSession,
    source: Source[Any, Any],
    watermark_strategy: WatermarkStrategy,
    name: str,
    *,
    batch: bool = False,
    **options: Any,
) -> DataFrame:
    """A streaming frame over a source, with the exact watermark; or a batch frame of all there is now.

    Parameters
    ----------
    source
        What to read.
    watermark_strategy
        Event times, watermarks, idleness, alignment.
    name
        Of this source in the query; the observed metrics carry it.
    batch
        Read once what there is, as `spark.read` does: without watermarks, whatever the strategy says of them.
    **options
        Any of `eventTimeAs`, `lateness`, `late`, `invalidTimestamp`, `includeMetadata`, `maxRowsPerTrigger`,
        `numReaders`, `indexing`, and where the readers report to: `gatewayHost`, `gatewayPort`.

    Returns
    -------
    DataFrame
        The data and the event time, which carries the watermark already: window on it, join on it, but do not call
        `withWatermark`.

    Raises
    ------
    OptionError
        If an option is unknown, wrong, or one that the strategy stands for.
    """
    checked_name(name)
    for option in options:
        if option.lower() in {known.name.lower() for known in STRATEGY_OPTIONS}:
            raise OptionError(f"option {option} is part of the watermark_strategy here; set it there")
    given = {option: _as_text(value) for option, value in options.items()}
    parsed = frame_options((FRAME_OPTIONS | SOURCE_OPTIONS).parse({**given, "watermarkRows": EMITTED}))
    parsed = parsed.with_gateway_host(_driver_host(spark))
    # Checked here, in the user's own call, before it is checked again where Spark runs it.
    described = AlignedDataSource(source, watermark_strategy, parsed)
    read_rules(watermark_strategy, parsed, bounded=source.boundedness is Boundedness.BOUNDED)
    content: bytes = cloudpickle.dumps((source, watermark_strategy, parsed))  # type: ignore[no-untyped-call]
    kind = _data_source(f"aligned_source_{name}", driver=sys.executable, content=content)
    spark.dataSource.register(kind)
    if batch:
        return spark.read.format(kind.name()).load()
    frame = spark.readStream.format(kind.name()).option("watermarkRows", EMITTED).load()
    return exact_frame(frame, described.event_time_in(frame.schema), described.bound_us, name)


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _driver_host(spark: SparkSession) -> str:
    """Under which address executors find the driver."""
    master, host = spark.conf.get("spark.master", None), spark.conf.get("spark.driver.host", None)
    return "127.0.0.1" if master is None or master.startswith("local") or host is None else host


def _data_source(
    format_name: str, *, driver: str, driver_host: str = "127.0.0.1", content: bytes | None = None
) -> type[DataSource]:
    """A data source class that Spark pickles whole, so that it can say clearly where this library is missing.

    A class that a module holds would be pickled by its name, and a worker without that module would fail in unpickling.
    """

    class Registered(DataSource):
        def __init__(self, options: Any) -> None:
            try:
                from streaming_source.spark.datasource import AlignedDataSource
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(
                    f"Spark's workers run {sys.executable} (Python {sys.version.split()[0]}), which has no module "
                    f"{error.name!r}; the driver runs {driver}. Install spark-watermark-alignment for the workers, or "
                    f"set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has it, before the session starts",
                    name=error.name,
                ) from None
            if content is None:
                self._aligned = AlignedDataSource.of_format(format_name, dict(options), driver_host)
            else:
                emits = {name.lower(): value for name, value in dict(options).items()}.get("watermarkrows") == EMITTED
                self._aligned = AlignedDataSource.of_pickle(content, emits=emits)

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> Any:
            return self._aligned.schema()

        def streamReader(self, schema: Any) -> Any:
            # In a process of Spark's own, where what is imported now stays. Looking through all of it for garbage, as
            # happens every few micro-batches, takes longer than planning one.
            gc.freeze()
            return self._aligned.stream_reader(schema)

        def reader(self, schema: Any) -> Any:
            return self._aligned.batch_reader(schema)

    return Registered
