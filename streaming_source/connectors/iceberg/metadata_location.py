"""The place of a table's metadata by its catalog: a look that finds nothing new need not read and parse them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from pyiceberg.catalog import Catalog

_SQL: Final = "pyiceberg.catalog.sql.SqlCatalog"


def metadata_location(catalog: Catalog, name: str) -> str | None:
    """Return where the metadata of a table are, in one request; None where the catalog has no request for that alone.

    A commit writes metadata at a new location, so those at a known one are known. None as well for a table that is not
    there: loading it gives the error. O(1), where loading a table is O(its snapshots).
    """
    locate = _BY_CLASS.get(f"{type(catalog).__module__}.{type(catalog).__qualname__}")
    return None if locate is None else locate(catalog, name)


def catalog_names_of(catalog: Catalog, name: str) -> list[str]:
    """Return the catalog names for which the database of an SQL catalog has a table, sorted; none of other catalogs."""
    if f"{type(catalog).__module__}.{type(catalog).__qualname__}" != _SQL:
        return []
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select

    columns, engine = IcebergTables.__table__.c, cast(Any, catalog).engine
    found = select(columns.catalog_name).where(
        columns.table_namespace == Catalog.namespace_to_string(Catalog.namespace_from(name)),
        columns.table_name == Catalog.table_name_from(name),
    )
    with engine.connect() as connection:
        return sorted(connection.execute(found).scalars())


def _in_sql(catalog: Any, name: str) -> str | None:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select

    columns = IcebergTables.__table__.c
    found = select(columns.metadata_location).where(
        columns.catalog_name == catalog.name,
        columns.table_namespace == Catalog.namespace_to_string(Catalog.namespace_from(name)),
        columns.table_name == Catalog.table_name_from(name),
    )
    with catalog.engine.connect() as connection:
        location: str | None = connection.execute(found).scalar()
    return location


def _in_glue(catalog: Any, name: str) -> str | None:
    database, table = Catalog.identifier_to_database_and_table(name)
    try:
        found = catalog.glue.get_table(DatabaseName=database, Name=table)
    except catalog.glue.exceptions.EntityNotFoundException:
        return None
    location: str | None = found["Table"].get("Parameters", {}).get("metadata_location")
    return location


_BY_CLASS: Final[Mapping[str, Callable[[Any, str], str | None]]] = {
    _SQL: _in_sql,
    "pyiceberg.catalog.glue.GlueCatalog": _in_glue,
}
"""Catalogs that keep a pointer to metadata. A REST catalog answers with the metadata themselves."""
