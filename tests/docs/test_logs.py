"""The programs of docs/logs.md count the lines of each hour in logs as they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from tests.docs.pages import ROOT, code
from tests.examples import one_in

LOGS: Final = {
    "hadoop": (
        "2015-10-18 18:01:47,978 INFO [main] Created MRAppMaster\n\tat java.lang.Thread.run(Thread.java:724)\n"
        "2015-10-18 18:59:59,999 ERROR [RMCommunicator] ERROR IN CONTACTING RM.\n"
        "2015-10-18 19:00:00,000 INFO [main] Using callQueue\n",
        {"2015-10-18 18": 2, "2015-10-18 19": 1},
    ),
    "epoch": (
        "- 1117838570 2005.06.03 R02-M1 RAS KERNEL INFO\nFATAL 1117839600 2005.06.03 R02-M1 RAS\n",
        {"2005-06-03 22": 1, "2005-06-03 23": 1},
    ),
    "apache": (
        "[Sun Dec 04 04:47:44 2005] [notice] workerEnv.init() ok\n[Sun Dec 04 05:12:10 2005] [error] mod_jk child\n",
        {"2005-12-04 04": 1, "2005-12-04 05": 1},
    ),
    "syslog": (
        "Jun 14 15:16:01 combo sshd(pam_unix)[19939]: check pass\nJun  4 15:16:02 combo su: session\n",
        {"2005-06-04 15": 1, "2005-06-14 15": 1},
    ),
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(4, LOGS))
def test_the_lines_of_each_hour_are_counted(spark: SparkSession, name: str, tmp_path: Path) -> None:
    written, right = LOGS[name]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / f"{name}.log").write_text(written, encoding="utf-8")
    of_page: dict[str, Any] = {"spark": spark, "path": str(tmp_path / "logs")}
    exec(code(ROOT / "docs" / "logs.md", name), of_page)
    found = of_page["hours"].selectExpr("date_format(window.start, 'yyyy-MM-dd HH') hour", "count")
    writer = found.writeStream.format("memory").queryName(f"hours_{name}").outputMode("complete")
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination(120)
    rows = spark.table(f"hours_{name}").collect()
    assert {row.hour: row["count"] for row in rows} == right
