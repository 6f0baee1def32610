"""Registration of formats in a session: a user's own, and the library's if Spark cannot find them by itself.

Spark finds the library's formats by their installed `pyspark_...` modules, so only a call of `register(spark)`
registers them. Registration is a command to the server, which a declarative pipeline refuses while it makes a frame.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException

from alignment.arrow_times import time_zone
from alignment.time_texts import UTC
from streaming_source.api import Source
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS, AlignedDataSource, driver_host, pickled
from streaming_source.spark.format_class import format_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REFUSED_IN_PIPELINES: Final = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""Error condition of Spark for a call that analyses or executes while a pipeline makes a frame."""

_OF_SESSION: Final = {
    "caseSensitive": ("spark.sql.caseSensitive", "true"),
    "ignoreSinkLog": ("spark.sql.streaming.fileStreamSink.ignoreMetadata", "true"),
    "textInNames": ("spark.sql.sources.partitionColumnTypeInference.enabled", "false"),
}
"""Option of files -> the setting of a session that Spark's own readers go by, and the value that switches it on."""

_known: Final[WeakKeyDictionary[Any, dict[str, bytes | None]]] = WeakKeyDictionary()
"""Session -> name of a format registered in it -> its content."""


def register(spark: SparkSession, *sources: type[Source[Any, Any]]) -> None:
    """Give connectors of your own a format name, for `readStream.format(name)`, `read.format(name)` and `read_stream`.

    If the library is installed, Spark finds the library's formats without this call. If the library is only on the
    path of Spark's workers, `register(spark)` registers its formats. In your own connectors, times without a zone are
    in the session's zone at the time of this call, unless option `timeZone` names another.

    Parameters
    ----------
    spark
        The session, of Spark Connect as well.
    *sources
        Classes whose attribute `name` is the format's name, and whose `options` are its options: by default those
        declared on the fields of a dataclass, see `streaming_source.api.options`.

    Raises
    ------
    TypeError
        If an argument is not a source class.
    OptionError
        If the class has no name, or the name of another format.

    Examples
    --------
    >>> from streaming_source import DataGeneratorSource
    >>> class Ticks(DataGeneratorSource):
    ...     name = "ticks"
    >>> register(spark, Ticks)  # doctest: +SKIP
    >>> ticks = spark.readStream.format("ticks").option("splits", 2).load()  # doctest: +SKIP
    """
    check_session(spark, "register(spark, MySource)")
    named: dict[str, type[Source[Any, Any]]] = {}
    for kind in sources:
        if not (isinstance(kind, type) and issubclass(kind, Source)):
            found = type(kind).__name__
            raise TypeError(f"register takes classes of sources, not a {found}: as in register(spark, MySource)")
        if not isinstance(kind.name, str):
            raise OptionError(
                f"{kind.__name__}.name is a property, but a format's name must be known before there is a source: "
                'write name = "..." in the class'
            )
        name = kind.name.lower()
        if isinstance(FORMATS.get(name), str):
            raise OptionError(f"{kind.__name__}.name = {kind.name!r} is a format of this library: choose another name")
        named[name] = kind
    for name in [name for name, known in FORMATS.items() if isinstance(known, str)]:
        # Spark warns if a format is registered under the name of one that it has found.
        if not sources or find_spec(f"pyspark_{name}") is None:
            register_format(spark, name)
    for name, kind in named.items():
        FORMATS[name] = kind
        register_format(spark, name, is_new=True)


def register_format(spark: SparkSession, format_name: str, *, is_new: bool = False) -> None:
    """Register one of `FORMATS` in a session, if it is not yet; `is_new` if its class may have changed."""
    if format_name in _known.get(spark, {}) and not is_new:
        return
    kind, content = FORMATS[format_name], None
    if not isinstance(kind, str):
        content = pickled(partial(AlignedDataSource.of_class, kind, driver_host(spark), zone=session_zone(spark)))
    try:
        register_content(spark, format_name, content)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Spark has found this format by itself, and it is the library's.
        if content is not None:
            raise OptionError(f"format {format_name!r} is that of another data source: choose another name") from None
        _known.setdefault(spark, {})[format_name] = content


def register_content(spark: SparkSession, format_name: str, content: bytes | None) -> None:
    """Register the class that `format_class` makes of `content`, unless the session has the same content by that name.

    Raises
    ------
    OptionError
        If the session is that of a declarative pipeline, which is calling one of its functions.
    """
    known = _known.setdefault(spark, {})
    if format_name in known and known[format_name] == content:
        return
    try:
        spark.dataSource.register(format_class(format_name, content, sys.executable))
    except AnalysisException as error:
        if error.getCondition() != REFUSED_IN_PIPELINES:
            raise
        raise OptionError(
            f"format {format_name!r} cannot be registered in a function of a pipeline, where Spark allows no call that "
            "executes; call register(spark, MySource), or from_source, at the top of the pipeline's file, and use the "
            "format or the frame in the function"
        ) from None
    known[format_name] = content


def check_session(spark: object, call: str) -> None:
    """Raise `TypeError` if `spark` is no session; `call` is the text of the correct call."""
    if not hasattr(spark, "readStream"):
        raise TypeError(f"the first argument must be the SparkSession, and is {described(spark)}: as in {call}")


def described(argument: object) -> str:
    """Describe an argument for an error."""
    return f"the class {argument.__name__}" if isinstance(argument, type) else f"of type {type(argument).__name__}"


def is_switched_off(spark: SparkSession, setting: str) -> bool:
    """Return whether a setting of a classic session is false; False under Spark Connect, where asking costs a call."""
    return hasattr(spark, "_jsparkSession") and str(spark.conf.get(setting, None)).lower() == "false"


def has_no_data_batches(spark: SparkSession) -> bool:
    """Return whether Spark runs micro-batches without data in this session, which close windows."""
    return not is_switched_off(spark, "spark.sql.streaming.noDataMicroBatches.enabled")


def switched_on(spark: SparkSession, options: Collection[str]) -> list[str]:
    """Return those of the options that settings of the session switch on for Spark's own readers."""
    asked = {option: _OF_SESSION[option] for option in _OF_SESSION if option in options}
    return [option for option, (name, value) in asked.items() if str(spark.conf.get(name, None)).lower() == value]


def session_zone(spark: SparkSession) -> str:
    """Return the session's zone, that of zoneless times: as set, else the JVM's; of the server under Spark Connect."""
    # Without a default value: with one, Spark returns it for an unset zone instead of the zone in effect.
    return spark.conf.get("spark.sql.session.timeZone") or UTC


def check_clock(spark: SparkSession, source: Source[Any, Any]) -> None:
    """Raise an `OptionError` if Spark's clock is in another zone than that by which this machine reads times in ORC.

    Under Spark Connect this is another machine than the one that reads, and nothing is checked.
    """
    jvm = spark._jvm if hasattr(spark, "_jsparkSession") else None
    if jvm is None or getattr(getattr(source, "format", None), "name", "") != "orc":
        return
    # Imported here: few sources have a clock.
    from streaming_source.data_files.formats.orc import machine_zone

    of_spark, of_machine = time_zone(jvm.java.time.ZoneId.systemDefault().getId()), machine_zone()
    if of_spark != of_machine:
        raise OptionError(
            f"fileFormat = orc: times in ORC are read by the clock of the machine, which is in {of_machine}, and that "
            f"of Spark's JVM in {of_spark}: start Spark with TZ={of_spark} in its environment, or write Parquet"
        )
