"""Write the tables beside this file with Spark's own Delta, on PySpark 4.2.

`python -m tests.delta.by_spark.write FOLDER` writes them there. They have what `deltalake` does not write, and are
small: each test reads them as they are.
"""

from __future__ import annotations

import sys

from tests.delta.spark_delta import jars_of_delta, session_with_delta

_AT = "timestamp_seconds(1700000000 + 60 * n) + make_dt_interval(0, 0, 0, 0.000777)"
_NESTED = ", named_struct('a', n, 'b', cast(n as string))"


def _rows(first: int, count: int, more: str = "", at: str = _AT) -> str:
    """`count` rows, a minute apart; a column `n` from `first` on."""
    numbers = f"select explode(sequence({first}, {first + count - 1})) n"
    return f"insert into TABLE select {at} as ts, n{more} from ({numbers})"


def _tables() -> dict[str, list[str]]:
    lists = f"{_NESTED}, array(named_struct('x', n)), n % 2"
    return {
        "deleted_rows": [
            "create table TABLE (ts timestamp, n int) using delta tblproperties ('delta.enableDeletionVectors' = true)",
            _rows(0, 100),
            _rows(100, 100),
            "delete from TABLE where n % 10 = 3 or n between 90 and 99",
            "delete from TABLE where n = 199",
        ],
        "mapped_by_id": [
            "create table TABLE (ts timestamp, n int, s struct<a: int, b: string>, l array<struct<x: int>>, part int) "
            "using delta partitioned by (part) tblproperties ('delta.columnMapping.mode' = 'id')",
            _rows(0, 20, lists),
        ],
        "renamed": [
            "create table TABLE (at timestamp, n int, gone int, s struct<a: int, b: string>) using delta "
            "tblproperties ('delta.columnMapping.mode' = 'name')",
            _rows(0, 20, f", 1 {_NESTED}"),
            "alter table TABLE rename column at to ts",
            "alter table TABLE rename column s.a to aa",
            "alter table TABLE drop column gone",
            _rows(20, 20, _NESTED),
        ],
        "widened": [
            "create table TABLE (ts timestamp, n int, d decimal(6, 2)) using delta "
            "tblproperties ('delta.enableTypeWidening' = true)",
            _rows(0, 20, ", cast(n as decimal(6, 2))"),
            "alter table TABLE alter column n type bigint",
            "alter table TABLE alter column d type decimal(12, 4)",
            _rows(20, 20, ", cast(n as decimal(12, 4))"),
        ],
        "variant": [
            "create table TABLE (ts timestamp, n int, v variant) using delta",
            _rows(0, 5, ", parse_json('1')"),
        ],
        "checkpoint_v2": [
            "create table TABLE (ts timestamp, n int) using delta "
            "tblproperties ('delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = 2)",
            *(_rows(10 * part, 10) for part in range(5)),
        ],
        "local_times": [
            "create table TABLE (ts timestamp_ntz, n int) using delta",
            _rows(0, 20, at=f"cast({_AT} as timestamp_ntz)"),
        ],
        "many_features": [
            "create table TABLE (ts timestamp, n int, day date generated always as (cast(ts as date))) using delta "
            "partitioned by (day) tblproperties ('delta.enableInCommitTimestamps' = true, "
            "'delta.enableRowTracking' = true, 'delta.enableChangeDataFeed' = true)",
            _rows(0, 20).replace("TABLE", "TABLE (ts, n)"),
            "alter table TABLE add constraint positive check (n >= 0)",
            _rows(20, 20).replace("TABLE", "TABLE (ts, n)"),
        ],
        "by_moment": [
            "create table TABLE (ts timestamp, n int) using delta partitioned by (ts)",
            _rows(0, 6),
            "insert into TABLE values (null, 6)",
        ],
        "by_local_moment": [
            "set spark.sql.session.timeZone = America/New_York",
            "set spark.databricks.delta.write.utcTimestampPartitionValues = false",
            "create table TABLE (ts timestamp, n int) using delta partitioned by (ts)",
            _rows(0, 4),
            _rows(4, 2),
            "insert into TABLE values (null, 6)",
            "set spark.sql.session.timeZone = UTC",
            "set spark.databricks.delta.write.utcTimestampPartitionValues = true",
        ],
        "clustered": [
            "create table TABLE (ts timestamp, n int) using delta cluster by (n)",
            _rows(0, 20),
            "optimize TABLE",
        ],
    }


def main(folder: str) -> None:
    session = session_with_delta(jars_of_delta())
    for name, statements in _tables().items():
        for statement in statements:
            try:
                session.sql(statement.replace("TABLE", f"delta.`{folder}/{name}`"))
            except Exception as error:
                print("FAILED", name, statement, str(error)[:600], flush=True)
                break
        print("written", name, flush=True)
    session.stop()


main(*sys.argv[1:])
