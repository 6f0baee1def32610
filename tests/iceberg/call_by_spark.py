"""Call a procedure of Spark's Iceberg on the catalog of a folder: `python call_by_spark.py JARS FOLDER CALL`.

For a Python with PySpark 4.1, the newest that Iceberg has a runtime for: it has nothing of this project. The catalog is
that of `tests.iceberg.tables`; in the call it is `tests`, and its table `db.t`.
"""

from __future__ import annotations

import sys

from spark_catalog import session_on


def main(jars: str, folder: str, call: str) -> None:
    session = session_on(jars, folder)
    session.sql(f"CALL tests.system.{call}").collect()
    session.stop()


main(*sys.argv[1:])
