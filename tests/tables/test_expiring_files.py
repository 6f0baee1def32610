"""Files that may be deleted before they are read: a warning in time, and no other."""

from __future__ import annotations

import pytest

from streaming_source.connectors.tables.waiting import ExpiringFiles

DAY = 86_400_000


def test_the_time_left_is_held_against_the_pace(caplog: pytest.LogCaptureFixture) -> None:
    now = [1_700_000_000_000]
    files = ExpiringFiles("Delta table /t", lambda: now[0])
    files.warn(1_000)
    files.add({f"{n}": now[0] + 7 * DAY for n in range(3)})
    for number in range(99):
        files.open(f"other-{number}")
    now[0] += DAY // 24

    files.warn(900)

    assert not caplog.records
    now[0] += 2 * DAY
    files.open("0")
    files.warn(900)
    files.warn(900)
    assert [record.getMessage() for record in caplog.records] == [
        "Delta table /t: 2 of the 900 files that wait to be read are not in the table any more, and stay until "
        "2023-11-21T22:13:20Z at least (4 days 23 hours left); at this pace that takes 18 days 9 hours. Raise the "
        "table's retention (delta.deletedFileRetentionDuration, or history.expire.max-snapshot-age-ms), or read more "
        "in a micro-batch"
    ]


def test_a_day_that_is_left_is_told_whatever_the_pace(caplog: pytest.LogCaptureFixture) -> None:
    now = [1_700_000_000_000]
    files = ExpiringFiles("t", lambda: now[0])
    files.add({"a": now[0] + DAY // 2})

    files.warn(5)

    assert "(12 hours left); none was opened yet." in caplog.text
    files.open("a")
    assert not len(files)
