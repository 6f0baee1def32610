"""A session of Spark on the catalog of a folder, for the scripts beside it, which a Python with PySpark 4.1 runs.

It is the newest that Iceberg has a runtime for, and has nothing of this project. The catalog is that of
`tests.iceberg.tables`; in SQL it is `tests`.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

__all__ = ["session_on"]


def session_on(jars: str, folder: str) -> SparkSession:
    """Start a small session."""
    catalog = "spark.sql.catalog.tests"
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "jdbc")
        .config(f"{catalog}.uri", f"jdbc:sqlite:{folder}/catalog.db")
        .config(f"{catalog}.warehouse", f"file://{folder}/warehouse")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
