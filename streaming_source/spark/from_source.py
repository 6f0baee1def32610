"""`from_source`: a frame over a `Source` and a `WatermarkStrategy`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from alignment.durations import format_duration
from alignment.strategy import WatermarkStrategy
from streaming_source.api import Boundedness, Source
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import AlignedDataSource, in_zone, pickled
from streaming_source.spark.exact_watermark import exact_frame
from streaming_source.spark.format_class import format_class
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, STRATEGY_OPTIONS, frame_options, read_rules
from streaming_source.spark.plain_errors import as_our_own
from streaming_source.spark.registration import check_session, checked_name, driver_host, session_zone
from streaming_source.spark.watermark_rows import EMITTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FrameKeywords", "from_source"]


class FrameKeywords(TypedDict, total=False):
    """The options of the frame as keywords, for editors and type checkers; `docs/options.md` says what they mean."""

    event_time_as: str
    lateness: Literal["bounded", "none"]
    late: Literal["keep", "drop", "fail", "route"]
    invalid_timestamp: Literal["fail", "null", "drop"]
    include_metadata: bool
    max_rows_per_trigger: int
    min_rows_per_trigger: int
    max_trigger_delay: timedelta | str
    num_readers: int
    warn_after: timedelta | str
    allow_unaligned_source_splits: bool
    gateway_host: str
    gateway_port: int
    gateway_certificate: str
    gateway_key: str
    event_log: str
    indexing: Literal["auto", "off"]


def from_source(
    spark: SparkSession,
    source: Source[Any, Any],
    watermark_strategy: WatermarkStrategy,
    name: str,
    **options: Unpack[FrameKeywords],
) -> DataFrame:
    """A streaming frame over a source, with the exact watermark.

    Parameters
    ----------
    source
        What to read.
    watermark_strategy
        Event times, watermarks, idleness, alignment.
    name
        Of this source in the query; the observed metrics carry it.
    **options
        The options of the frame in `docs/options.md`, as keywords: `max_rows_per_trigger` for `maxRowsPerTrigger`.

    Returns
    -------
    DataFrame
        The data and the event time, which carries the watermark already: window on it, join on it, but do not call
        `withWatermark`.

    Raises
    ------
    TypeError
        If arguments are swapped.
    OptionError
        If an option is unknown, wrong, or one that the strategy stands for.

    Examples
    --------
    >>> strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")
    >>> logs = from_source(spark, FileSource("/data/logs"), strategy, "logs")  # doctest: +SKIP
    """
    call = "from_source(spark, source, watermark_strategy, name)"
    check_session(spark, call)
    for argument, given, kind in (
        ("source", source, Source),
        ("watermark_strategy", watermark_strategy, WatermarkStrategy),
        ("name", name, str),
    ):
        if not isinstance(given, kind):
            raise TypeError(f"{argument} must be a {kind.__name__}, and is {given!r}: as in {call}")
    checked_name(name)
    parsed = frame_options((FRAME_OPTIONS | SOURCE_OPTIONS).parse({**_as_options(options), "watermarkRows": EMITTED}))
    parsed = parsed.with_gateway_host(driver_host(spark))
    source, watermark_strategy = in_zone(source, watermark_strategy, session_zone(spark))
    # Checked here, in the user's own call, before it is checked again where Spark runs it.
    described = AlignedDataSource(source, watermark_strategy, parsed)
    read_rules(watermark_strategy, parsed, bounded=source.boundedness is Boundedness.BOUNDED)
    content = pickled(partial(AlignedDataSource.of_source, source, watermark_strategy, parsed))
    format_name = f"aligned_source_{name}"
    spark.dataSource.register(format_class(format_name, content, sys.executable))
    with as_our_own():
        frame = spark.readStream.format(format_name).option("watermarkRows", EMITTED).load()
    return exact_frame(frame, described, name)


def _as_options(keywords: Mapping[str, Any]) -> dict[str, str]:
    """Keywords as a user would write them to `readStream`."""
    of_strategy = {option.name.lower() for option in STRATEGY_OPTIONS}
    known = {keyword.replace("_", ""): keyword for keyword in FrameKeywords.__annotations__}
    options = {}
    for keyword, value in keywords.items():
        name = keyword.replace("_", "").lower()
        if name in of_strategy:
            raise OptionError(f"option {keyword} is part of the watermark_strategy here; set it there")
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {known[nearest[0]]}?" if nearest else "."
            raise OptionError(f"from_source has no keyword {keyword!r}{hint} It has: {', '.join(known.values())}")
        if isinstance(value, timedelta):
            value = format_duration(value // timedelta(microseconds=1))
        options[name] = str(value)
    return options
