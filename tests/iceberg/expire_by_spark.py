"""Let snapshots of a table expire by Spark's own procedure: `python expire_by_spark.py JARS FOLDER COUNT`, which stay.

For a Python with PySpark 4.1, as `count_by_spark.py`.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(jars: str, folder: str, count: str) -> None:
    catalog = "spark.sql.catalog.tests"
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "jdbc")
        .config(f"{catalog}.uri", f"jdbc:sqlite:{folder}/catalog.db")
        .config(f"{catalog}.warehouse", f"file://{folder}/warehouse")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    arguments = f"table => 'db.t', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => {count}"
    session.sql(f"CALL tests.system.expire_snapshots({arguments})").collect()
    session.stop()


main(*sys.argv[1:])
