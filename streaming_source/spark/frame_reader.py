"""`read_stream(spark)`: a reader like Spark's own, whose frames have the exact watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, StructType

from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS, AlignedDataSource, source_class
from streaming_source.spark.exact_watermark import with_exact_watermark
from streaming_source.spark.plain_errors import as_our_own
from streaming_source.spark.registration import check_session, checked_name, make_known, session_zone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ExactStreamReader", "read_stream"]


def read_stream(spark: SparkSession) -> ExactStreamReader:
    """A reader like `spark.readStream`, of our formats and registered ones, whose frames have the exact watermark.

    Parameters
    ----------
    spark
        The session.

    Raises
    ------
    TypeError
        If it is none.

    Examples
    --------
    >>> events = (
    ...     read_stream(spark)
    ...     .format("aligned_files")
    ...     .option("eventTimeColumn", "ts")
    ...     .option("maxOutOfOrderness", "5 seconds")
    ...     .load("/data/logs")
    ... )  # doctest: +SKIP
    """
    check_session(spark, "read_stream(spark)")
    return ExactStreamReader(spark)


class ExactStreamReader:
    """Collects what to read, as `DataStreamReader` does; made by `read_stream`.

    Parameters
    ----------
    spark
        The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._name: str | None = None

    def format(self, source: str) -> ExactStreamReader:
        """What to read: `aligned_files`, `aligned_kafka`, `aligned_datagen`, or a format of your own (`register`).

        Raises
        ------
        OptionError
            If it is none of these.
        """
        if source.lower() not in FORMATS:
            raise OptionError(
                f"format {source!r}: read_stream reads {', '.join(sorted(FORMATS))}; other formats are read by "
                "spark.readStream; a Source of your own needs register(spark, MySource) first, or from_source"
            )
        self._format = source.lower()
        return self

    def option(self, key: str, value: Any) -> ExactStreamReader:
        """One option, as in `docs/options.md`; None takes nothing.

        Raises
        ------
        OptionError
            For `watermarkRows`.
        """
        if key.lower() == "watermarkrows":
            raise OptionError("option watermarkRows: read_stream gives the exact watermark without it; leave it out")
        if value is not None:
            # As in Spark the last one counts, whatever its case.
            self._options = {name: given for name, given in self._options.items() if name.lower() != key.lower()}
            self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> ExactStreamReader:
        """Several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def schema(self, schema: StructType | str) -> ExactStreamReader:
        """Columns of the data and their types: option `dataSchema`, for formats that have it.

        Parameters
        ----------
        schema
            A type, or text such as `t timestamp, n bigint`.
        """
        if not isinstance(schema, StructType | str):
            raise OptionError(f"schema = {schema!r}: must be a StructType or text such as 't timestamp, n bigint'")
        return self.option("dataSchema", schema if isinstance(schema, str) else _columns(schema))

    def name(self, source_name: str) -> ExactStreamReader:
        """Of this source: the observed metrics carry it.

        Raises
        ------
        OptionError
            If it is not of letters, digits and underscores.
        """
        self._name = checked_name(source_name)
        return self

    def load(self, path: str | None = None) -> DataFrame:
        """The frame, with its watermark on it.

        Parameters
        ----------
        path
            Option `path`.

        Raises
        ------
        OptionError
            If there is no format, or it has no such option.
        """
        if self._format is None:
            raise OptionError(f"read_stream needs a format: one of {', '.join(sorted(FORMATS))}")
        known = {option.name for option in source_class(self._format).options()}
        if "dataSchema" not in known and any(name.lower() == "dataschema" for name in self._options):
            raise OptionError(
                f"schema: the columns of {self._format} are known, so it has no option dataSchema; leave the schema "
                "out, and select columns afterwards"
            )
        # Here already: what is wrong with an option is raised by the user's own call.
        # The zone is that of the session now, which the data source cannot know.
        zone = {} if "timezone" in map(str.lower, self._options) else {"timeZone": session_zone(self._spark)}
        options = {**zone, **self._options}
        AlignedDataSource.of_format(self._format, options if path is None else {**options, "path": path})
        make_known(self._spark, self._format)
        with as_our_own():
            frame = self._spark.readStream.format(self._format).options(**options).load(path)
        return with_exact_watermark(frame, name=self._name)


def _columns(schema: StructType) -> str:
    return ", ".join(f"`{field.name.replace('`', '``')}` {_type(field.dataType)}" for field in schema)


def _type(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return f"struct<{_columns(kind)}>"
    return f"array<{_type(kind.elementType)}>" if isinstance(kind, ArrayType) else kind.simpleString()
