"""Formats that a session knows: ours, which Spark finds by itself, and the user's own."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException

from alignment.arrow_times import UTC
from streaming_source.api import Source
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import FORMATS, AlignedDataSource, pickled
from streaming_source.spark.format_class import format_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_session", "checked_name", "driver_host", "make_known", "register", "session_zone"]

_known: Final[WeakKeyDictionary[Any, set[str]]] = WeakKeyDictionary()
"""Session -> names of formats that it knows."""


def register(spark: SparkSession, *sources: type[Source[Any, Any]]) -> None:
    """Give connectors of your own a format name, for `readStream.format(name)`, `read.format(name)` and `read_stream`.

    The formats that come with the library need it only where Spark's workers have the library on their path, and not
    installed: installed, Spark finds them by itself. Times of your own connectors that say no zone are in
    that of the session, as it is now, unless option `timeZone` names another.

    Parameters
    ----------
    spark
        The session, of Spark Connect as well.
    *sources
        Classes whose attribute `name` is the format's name, and whose `options` are what it takes: by default what is
        declared on the fields of a dataclass, see `streaming_source.api.options`.

    Raises
    ------
    TypeError
        If one is not a class of a source.
    OptionError
        If its name is not known of the class, or is that of another format.

    Examples
    --------
    >>> register(spark, SqliteSource)  # doctest: +SKIP
    >>> rows = spark.readStream.format("sqlite").option("database", "sensors.db").load()  # doctest: +SKIP
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
        make_known(spark, name)
    for name, kind in named.items():
        FORMATS[name] = kind
        _known.get(spark, set()).discard(name)
        make_known(spark, name)


def make_known(spark: SparkSession, format_name: str) -> None:
    """Let a session know one of `FORMATS`, unless it does."""
    known = _known.setdefault(spark, set())
    if format_name in known:
        return
    kind, content = FORMATS[format_name], None
    if not isinstance(kind, str):
        content = pickled(partial(AlignedDataSource.of_class, kind, driver_host(spark), zone=session_zone(spark)))
    try:
        spark.dataSource.register(format_class(format_name, content, sys.executable))
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Spark has found it by itself: ours is the one that is meant.
        if content is not None:
            raise OptionError(f"format {format_name!r} is that of another data source: choose another name") from None
    known.add(format_name)


def check_session(spark: object, call: str) -> None:
    """Raise `TypeError` for what is no session; `call` is how it is written."""
    if not hasattr(spark, "readStream"):
        raise TypeError(f"the first argument must be the SparkSession, and is a {type(spark).__name__}: as in {call}")


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


def session_zone(spark: SparkSession) -> str:
    """In which times are that say no zone."""
    return spark.conf.get("spark.sql.session.timeZone", None) or UTC


def driver_host(spark: SparkSession) -> str:
    """Under which address executors find the driver."""
    master, host = spark.conf.get("spark.master", None), spark.conf.get("spark.driver.host", None)
    return "127.0.0.1" if master is None or master.startswith("local") or host is None else host
