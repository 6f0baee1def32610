"""Times that are not ISO-8601: what a pattern of letters reads is what plain Python reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from alignment.exceptions import InvalidTimestampError
from streaming_source.connectors.files import CsvFormat, FileSource, JsonFormat
from streaming_source.data_files.formats.text_times import WrittenTimes, time_pattern
from streaming_source.exceptions import MalformedDataError, OptionError
from tests.spark.reading import micros, read_all

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
ZONE = timezone(timedelta(hours=-3, minutes=-30))


def micros_of(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def half(t: datetime) -> str:
    return "AM" if t.hour < 12 else "PM"


# How each pattern is written, and what of a time that keeps, by plain Python.
PATTERNS: dict[str, tuple[Callable[[datetime], str], Callable[[datetime], datetime]]] = {
    "dd.MM.yyyy HH:mm:ss": (
        lambda t: f"{t.day:02}.{t.month:02}.{t.year:04} {t:%H:%M:%S}",
        lambda t: t.replace(microsecond=0),
    ),
    "yyyyMMddHHmmssSSS": (
        lambda t: f"{t.year:04}{t:%m%d%H%M%S}{t.microsecond // 1000:03}",
        lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000),
    ),
    "M/d/yyyy h:m a": (
        lambda t: f"{t.month}/{t.day}/{t.year:04} {t.hour % 12 or 12}:{t.minute} {half(t)}",
        lambda t: t.replace(second=0, microsecond=0),
    ),
    "d-MMM-uuuu'T'HH": (
        lambda t: f"{t.day}-{MONTHS[t.month - 1][:3].upper()}-{t.year:04}T{t.hour:02}",
        lambda t: t.replace(minute=0, second=0, microsecond=0),
    ),
    "MMMM d, y": (
        lambda t: f"{MONTHS[t.month - 1]} {t.day}, {t.year}",
        lambda t: t.replace(hour=0, minute=0, second=0, microsecond=0),
    ),
    "HH 'o''clock' dd/MM/yyyy": (
        lambda t: f"{t.hour:02} o'clock {t.day:02}/{t.month:02}/{t.year:04}",
        lambda t: t.replace(minute=0, second=0, microsecond=0),
    ),
    "yyyy/MM/dd HH:mm:ss.SSSSSS XXX": (
        lambda t: f"{t.astimezone(ZONE).replace(tzinfo=None):%Y/%m/%d %H:%M:%S.%f} -03:30",
        lambda t: t,
    ),
    "yyyy.MM.dd HH:mm:ss.SSSSSSSSS Z": (
        lambda t: f"{t.astimezone(ZONE).replace(tzinfo=None):%Y.%m.%d %H:%M:%S.%f}789 -0330",
        lambda t: t,
    ),
    "yyyy-MM-dd[ HH:mm[:ss]][X]": (
        lambda t: (
            f"{t:%Y-%m-%d}{['', ' %H:%M', ' %H:%M:%S'][t.second % 3]}".replace(" %H:%M:%S", f" {t:%H:%M:%S}").replace(
                " %H:%M", f" {t:%H:%M}"
            )
            + ["", "Z", "+00"][t.minute % 3]
        ),
        lambda t: t.replace(
            hour=t.hour if t.second % 3 else 0,
            minute=t.minute if t.second % 3 else 0,
            second=t.second if t.second % 3 == 2 else 0,
            microsecond=0,
        ),
    ),
}

times = st.lists(
    st.none()
    | st.datetimes(datetime(1001, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
    | st.datetimes(datetime(1969, 12, 31), datetime(1970, 1, 2), timezones=st.just(UTC)),
    max_size=20,
)


@pytest.mark.parametrize("pattern", PATTERNS)
@given(times=times)
def test_a_pattern_reads_what_plain_python_wrote(pattern: str, times: list[datetime | None]) -> None:
    write, kept = PATTERNS[pattern]
    texts = pa.array([None if time is None else write(time) for time in times], pa.string())
    values, valid = time_pattern(pattern).parse(texts)
    assert valid.tolist() == [time is not None for time in times]
    found = [value if is_valid else None for value, is_valid in zip(values.tolist(), valid.tolist(), strict=True)]
    assert found == [None if time is None else micros_of(kept(time)) for time in times]


def test_of_several_ways_in_a_pattern_the_first_that_fits_is_taken() -> None:
    texts = ["2024-01-02 03:04:05", "1/2/2024 3:04", "1/2/2024", "2024-01-02 03:04:05 1/2/2024 3:04", None]
    values, valid = time_pattern("[yyyy-MM-dd HH:mm:ss][M/d/yyyy H:mm]").parse(pa.array(texts))
    times = [micros_of(datetime(2024, 1, 2, 3, 4, second, tzinfo=UTC)) for second in (5, 0)]
    assert values[:2].tolist() == times
    assert valid.tolist() == [True, True, False, False, False]
    # As in Java: the first one fits the beginning of the text, and what follows it fits nothing.
    _, valid = time_pattern("[yyyy-MM-dd][yyyy-MM-dd HH:mm]").parse(pa.array(["2024-01-02", "2024-01-02 03:04"]))
    assert valid.tolist() == [True, False]


def test_two_digits_are_a_year_of_this_century() -> None:
    values, valid = time_pattern("dd/MM/yy").parse(pa.array(["31/01/24", "31/01/70", "31/01/2024"]))
    assert values[:2].tolist() == [micros_of(datetime(year, 1, 31, tzinfo=UTC)) for year in (2024, 2070)]
    assert valid.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("dd.MM.yyyy", "30.02.2023"),
        ("dd.MM.yyyy", "1.02.2023"),
        ("dd.MM.yyyy", " 01.02.2023"),
        ("dd.MM.yyyy", "01.13.2023"),
        ("dd.MM.yyyy", "01.02.2023\n"),
        ("dd.MM.yyyy", ""),
        ("dd.MM.yyyy", "2023-02-01"),
        ("d MMM yyyy", "1 Jun. 2023"),
        ("d MMM yyyy", "1 Mai 2023"),
        ("yyyy HH", "2023 24"),
        ("yyyy hh a", "2023 13 PM"),
        ("yyyy hh a", "2023 00 AM"),
        ("yyyy HH:mm", "2023 12:60"),
        ("yyyy XXX", "2023 +0100"),
        ("yyyy XXX", "2023 +01:60"),
        ("yyyy XXX", "2023 +19:00"),
        ("yyyy.MM", "2023x01"),
    ],
)
def test_what_is_written_in_another_way_or_is_no_time_is_unreadable(pattern: str, text: str) -> None:
    _, valid = time_pattern(pattern).parse(pa.array([text, None]))
    assert valid.tolist() == [False, False]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("yyyy-MM-dd E", "the letter E is not known. Known are y u M"),
        ("yyyy-DDD", "the letter D is not known"),
        ("yyyy-MM-ddTHH", "the letter T is not known. .* put other text in quotes, as in 'T'"),
        ("yyyy VV", "the letter V is not known"),
        ("yyy-MM", "yyy means nothing; there are y, yy, yyyy"),
        ("yyyy HHH", "HHH means nothing; there are H, HH"),
        ("yyyy SSSSSSSSSS", "SSSSSSSSSS means nothing"),
        ("yyyy-MM-yyyy", "contains the year twice"),
        ("yyyy HH hh a", "contains the hour twice"),
        ("yyyy hh", "h, the hour from 1 to 12, and a, AM or PM, need each other"),
        ("yyyy HH a", "h, the hour from 1 to 12, and a, AM or PM, need each other"),
        ("yyyy 'T", "a quote does not end"),
        ("yyyy [MM", r"a \[ has no \] after it"),
        ("yyyy MM]", r"a \] has no \[ before it"),
        ("yyyy #", "# has no meaning in a pattern"),
        ("--", "has no letter for a part of a time"),
        ("", "has no letter for a part of a time"),
    ],
)
def test_a_pattern_that_cannot_be_read_by_is_refused_by_name(pattern: str, message: str) -> None:
    for kind in ("csv", "json"):
        options = FileSource.options().parse({"path": "/", "fileFormat": kind, "timestampFormat": pattern})
        with pytest.raises(OptionError, match=rf"option timestampFormat = .*: {message}"):
            FileSource.from_options(options)
    options = FileSource.options().parse({"path": "/", "fileFormat": "orc", "timestampFormat": "y"})
    with pytest.raises(OptionError, match=r"option timestampFormat is not one of fileFormat = orc, but of csv, json"):
        FileSource.from_options(options)


# ---- through the source --------------------------------------------------------------------------------------------

FRAME = StructType().add("t", TimestampType()).add("d", StringType()).add("n", LongType())
FRAME = FRAME.add("_corrupt_record", StringType()).add("_position", LongType())
TIMES = ["02.01.1970 00:00", "1970-01-02", "31.02.1970 00:00", "03.01.1970 00:00"]
DAY = 86_400_000_000


def put_lines(path: Path, name: str, times: list[str]) -> None:
    path.parent.mkdir()
    lines = [f"{t},1970-01-01T00:00:00,{n}" for n, t in enumerate(times)]
    if name == "json":
        lines = [json.dumps({"t": t, "d": "1970-01-01T00:00:00", "n": n}) for n, t in enumerate(times)]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("name", ["csv", "json"])
def test_times_that_are_not_written_so_or_are_no_times_follow_the_mode(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log" / "f"
    put_lines(path, name, TIMES)
    options = {"fileFormat": name, "timestampFormat": "dd.MM.yyyy HH:mm", "eventTimeColumn": "t"}
    options |= {"includeMetadata": "true", "invalidTimestamp": "null"}
    kept = read_all(tmp_path, FRAME, **options)
    assert micros(kept) == [DAY, None, None, 2 * DAY]
    assert kept.column("n").to_pylist() == [0, 1, 2, 3]
    assert kept.column("_corrupt_record").is_valid().to_pylist() == [False, True, True, False]
    left = read_all(tmp_path, FRAME, mode="DROPMALFORMED", **options)
    assert left.column("_position").to_pylist() == [0, 3]
    message = f"{path}, record 1 is malformed: t = '1970-01-02' is not of the form timestampFormat = dd.MM.yyyy HH:mm"
    with pytest.raises(MalformedDataError, match=message):
        read_all(tmp_path, FRAME, mode="FAILFAST", **options)
    with pytest.raises(InvalidTimestampError, match="split 'log', position 1"):
        read_all(tmp_path, FRAME, **{**options, "invalidTimestamp": "fail"})


@pytest.mark.parametrize("name", ["csv", "json"])
def test_columns_that_are_written_by_the_pattern_are_inferred_as_times_and_no_others(name: str, tmp_path: Path) -> None:
    put_lines(tmp_path / "log" / "f", name, [TIMES[0], TIMES[3]])
    kind = CsvFormat if name == "csv" else JsonFormat
    made = FileSource(str(tmp_path), format=kind(infer_schema=True, timestamp_format="dd.MM.yyyy HH:mm"))
    assert made.schema().types == [pa.timestamp("us", "UTC"), pa.string(), pa.int64()]
    column = made.schema().names[0]
    options = {"fileFormat": name, "inferSchema": "true", "timestampFormat": "dd.MM.yyyy HH:mm"}
    assert micros(read_all(tmp_path, eventTimeColumn=column, **options), column) == [DAY, 2 * DAY]
    # Without it the same texts are text.
    assert FileSource(str(tmp_path), format=kind(infer_schema=True)).schema().field(0).type == pa.string()


def test_times_without_a_zone_may_be_in_iso_8601_beside_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("05.01.2024 10:20,2024-01-05 10:20:00\n05.01.2024 10:20,05.01.2024 10:20\n")
    columns = "t timestamp, v timestamp_ntz"
    options = {"fileFormat": "csv", "timestampFormat": "dd.MM.yyyy HH:mm", "dataSchema": columns}
    read = read_all(tmp_path, eventTimeColumn="t", timeZone="UTC", **options)
    assert read["v"].cast(pa.int64()).to_pylist() == micros(read) == [1_704_450_000_000_000] * 2


def test_a_date_in_a_pattern_is_the_same_day_in_each_zone() -> None:
    for zone in ("Asia/Tokyo", "UTC", "America/New_York"):
        written = WrittenTimes(of_dates=time_pattern("dd/MM/yyyy"), zone=zone)
        assert written.read(pa.array(["02/01/2024"]), pa.date32()).to_pylist() == [datetime(2024, 1, 2).date()]
