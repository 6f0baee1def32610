"""Call a procedure of Spark's Iceberg on the catalog of a folder: `python call_by_spark.py JARS FOLDER CALL`.

For a Python with PySpark 4.1, the newest that Iceberg has a runtime for: it has nothing of this project. The catalog is
that of `tests.iceberg.tables`; in the call it is `tests`, and its table `db.t`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(jars: str, folder: str, call: str) -> None:
    catalog = "spark.sql.catalog.tests"
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "jdbc")
        .config(f"{catalog}.uri", f"jdbc:sqlite:{folder}/catalog.db")
        .config(f"{catalog}.warehouse", f"file://{folder}/warehouse")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    session.sql(f"CALL tests.system.{call}").collect()
    session.stop()


main(*sys.argv[1:])
