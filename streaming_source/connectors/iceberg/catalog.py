"""The catalog in which a table is, and the stores in which its files are; errors name the fix.

`pyiceberg` is imported when a table is looked up: by the planner, and on no executor. What an Iceberg table writes as
the location of a file has a scheme and a path, as a URI has them, but nothing in its path is escaped: `p=a%2Fb` is the
name of a directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
from pyarrow import fs

from alignment.sentence import named
from alignment.shown import without_secrets
from streaming_source.data_files.faults import store_fault
from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import (
    OptionError,
    PathNotFoundError,
    SourceError,
    StoreUnavailableError,
    UnsupportedOperationError,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


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
    is_sql = f"{type(catalog).__module__}.{type(catalog).__qualname__}" == _SQL
    return sorted(_of_sql(catalog, name, "catalog_name")) if is_sql else []


def _of_sql(catalog: Any, name: str, column: str, *where: Any) -> list[str]:
    """Return a column of what the database of an SQL catalog has of the tables of that name, of all its catalogs."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select

    columns = IcebergTables.__table__.c
    found = select(columns[column]).where(
        columns.table_namespace == catalog.namespace_to_string(catalog.namespace_from(name)),
        columns.table_name == catalog.table_name_from(name),
        *(columns.catalog_name == one for one in where),
    )
    with catalog.engine.connect() as connection:
        return [*connection.execute(found).scalars()]


def _in_sql(catalog: Any, name: str) -> str | None:
    return next(iter(_of_sql(catalog, name, "metadata_location", catalog.name)), None)


def _in_glue(catalog: Any, name: str) -> str | None:
    from pyiceberg.catalog import Catalog

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


_PASSING: Final = {
    *("ConnectionError", "ConnectTimeout", "ReadTimeout", "Timeout", "ChunkedEncodingError"),
    *("OperationalError", "ServerError", "ServiceUnavailableError", "EndpointConnectionError", "ConnectTimeoutError"),
}
"""Classes of errors of catalogs' clients that may pass: of requests, SQLAlchemy, botocore and pyiceberg."""

_NAMED: Final = 5
_STORE_OPTIONS: Final = "the options catalog.*, as catalog.s3.endpoint"

_PUBLIC: Final = ("type", "uri", "warehouse", "py-catalog-impl", "py-io-impl")
_PUBLIC_ENDS: Final = (".region", ".endpoint")


@dataclass(frozen=True, slots=True)
class CatalogProperties:
    """The properties of a catalog: its name in the configuration of `pyiceberg`, and those that go before it.

    The properties are in no log, error or `repr`.
    """

    name: str | None = None
    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)


DEFAULT_CATALOG: Final = CatalogProperties()
"""That of the file `.pyiceberg.yaml`."""


def load_table(catalog: CatalogProperties, name: str, known: Table | None = None) -> Table:
    """Load a table as it is now; `known` itself where the catalog has the same metadata of it.

    O(1) where nothing was committed and the catalog keeps a pointer to the metadata; else O(snapshots). A
    `PathNotFoundError` if the catalog has no such table, an `OptionError` if it cannot be opened with these properties,
    a `StoreUnavailableError` if it or the store of its metadata does not answer, an `UnsupportedOperationError` if
    `pyiceberg` does not understand the table.
    """
    opened = _opened(catalog)
    from streaming_source.connectors.iceberg.manifest_files import with_checked_manifests

    try:
        if known is not None and metadata_location(opened, name) == known.metadata_location:
            return known
        return with_checked_manifests(opened.load_table(name))
    except Exception as error:
        raise _as_ours(error, catalog, name) from None


@lru_cache(maxsize=16)
def _opened(catalog: CatalogProperties) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyiceberg":
            raise
        raise ModuleNotFoundError(
            "IcebergSource needs pyiceberg: install spark-watermark-alignment[iceberg]", name=error.name
        ) from None
    try:
        return _without_table_settings(load_catalog(catalog.name, **dict(catalog.values)))
    except Exception as error:
        if type(error).__name__ in _PASSING:
            raise _as_ours(error, catalog, None) from None
        raise OptionError(
            f"catalog.*: {_named(catalog)} cannot be opened: {_message(error, catalog)}. Give what "
            "pyiceberg needs, as in catalog.type = rest and catalog.uri, or have it in the file .pyiceberg.yaml"
        ) from None


def _without_table_settings(catalog: Catalog) -> Catalog:
    """Let the catalog open stores by its own properties, and not by those of a table, which come out of data.

    `pyiceberg` would take an endpoint of `s3.endpoint`, or a class of `py-io-impl`, from the table's metadata. What the
    server of a REST catalog answers beside these metadata counts, but for a class.
    """
    opened: Any = catalog
    if hasattr(opened, "_response_to_table"):
        respond = opened._response_to_table

        def without(name: tuple[str, ...], response: Any) -> Table:
            config = {key: value for key, value in response.config.items() if key != "py-io-impl"}
            bare = response.metadata.model_copy(update={"properties": {}})
            table: Table = respond(name, response.model_copy(update={"metadata": bare, "config": config}))
            table.metadata = response.metadata
            return table

        opened._response_to_table = without
    else:
        load_io = opened._load_file_io
        opened._load_file_io = lambda properties=None, location=None: load_io(location=location)
    return catalog


def _as_ours(error: Exception, catalog: CatalogProperties, name: str | None) -> Exception:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    message = _message(error, catalog)
    if {"NoSuchTableError", "NoSuchNamespaceError", "NoSuchIdentifierError"} & kinds:
        return PathNotFoundError(
            f"table: {_named(catalog)} has no Iceberg table {name!r}; {_instead_of(catalog, str(name))}"
        )
    if _PASSING & kinds:
        return StoreUnavailableError(f"{_named(catalog)} did not answer: {message}; start again when it does")
    if isinstance(error, SourceError):
        return error
    if isinstance(error, OSError):
        return store_fault(error, f"Iceberg table {name}", _STORE_OPTIONS)
    if {"ValidationError", "NotImplementedError", "ValueError", "TypeError"} & kinds:
        return UnsupportedOperationError(
            f"Iceberg table {name} cannot be read by this version of pyiceberg: {message}. Take a newer pyiceberg, or "
            "read it with spark.readStream.format('iceberg') and withWatermark"
        )
    return OptionError(f"{_named(catalog)} cannot be used: {message}; correct the options catalog.*")


def _instead_of(catalog: CatalogProperties, name: str) -> str:
    """Return what to do about a table that a catalog lacks, by what the catalog has."""
    try:
        opened = _opened(catalog)
        if names := catalog_names_of(opened, name):
            return (
                f"its database has the table for the catalog name {' and '.join(map(repr, names))}, and "
                f"{opened.name!r} was looked up: give option catalog.name = {names[0]}"
            )
        namespaces = sorted(".".join(one) for one in opened.list_namespaces())
        namespace = name.rpartition(".")[0]
        if namespace not in namespaces:
            return f"its namespaces are {_some(namespaces, namespace)}: give a table of one, as in .load('db.clicks')"
        tables = sorted(".".join(one) for one in opened.list_tables(namespace))
        return f"its tables in {namespace!r} are {_some(tables, name)}: give one of them"
    except Exception:  # whatever the client raises: that the table is not there is what the user must know
        return "give one that it has, as in .load('db.clicks')"


def _some(names: list[str], wanted: str) -> str:
    near = get_close_matches(wanted, names, _NAMED)
    return named([*near, *(name for name in names if name not in near)], _NAMED) or "none"


def _named(catalog: CatalogProperties) -> str:
    return f"catalog {catalog.name!r}" if catalog.name else "the catalog"


def _message(error: Exception, catalog: CatalogProperties) -> str:
    message: str = without_secrets(" ".join(str(error).split())).rstrip(".")
    for name, value in catalog.values:
        if name not in _PUBLIC and not name.endswith(_PUBLIC_ENDS) and len(value) > 3:
            # Also inside of a word, as in an address that is escaped (`token%3D...`): `scrubbed` hides whole words.
            message = message.replace(value, "***")
    return message[:500]


def properties_of(values: dict[str, Any]) -> CatalogProperties:
    """Make them of the rests of the options `catalog.*`."""
    rest = {name: str(value) for name, value in values.items() if name != "name"}
    return CatalogProperties(values.get("name"), tuple(sorted(rest.items())))


_S3: Final = {
    "s3.endpoint": "endpoint_override",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
    "s3.role-arn": "role_arn",
    "s3.role-session-name": "session_name",
    "s3.connect-timeout": "connect_timeout",
    "s3.request-timeout": "request_timeout",
    "s3.force-virtual-addressing": "force_virtual_addressing",
    "s3.anonymous": "anonymous",
    "client.access-key-id": "access_key",
    "client.secret-access-key": "secret_key",
    "client.session-token": "session_token",
    "client.region": "region",
}
_AZURE: Final = {
    "adls.account-name": "account_name",
    "adls.account-key": "account_key",
    "adls.sas-token": "sas_token",
    "adls.tenant-id": "tenant_id",
    "adls.client-id": "client_id",
    "adls.client-secret": "client_secret",
}
_BY_SCHEME: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), _S3),
    **dict.fromkeys(("abfs", "abfss"), _AZURE),
}


def storage_of_catalog(properties: Mapping[str, str], scheme: str) -> StorageOptions:
    """Return the arguments of a file system among the properties of a catalog, by the names that pyiceberg has."""
    names, found = _BY_SCHEME.get(scheme, {}), dict[str, str]()
    for name, value in properties.items():
        if name in names and (name.startswith("s3.") or names[name] not in found):
            found[names[name]] = value
    return StorageOptions.of(found)


def located_files(storage: StorageOptions, properties: Mapping[str, str]) -> fs.FileSystem:
    """Return a file system whose paths are locations; each store is opened with `storage`, else as the catalog is."""
    return fs.PyFileSystem(_Locations(storage, properties))


class _Locations(fs.FileSystemHandler):  # type: ignore[misc]
    """Opens and looks at files, and does no more."""

    def __init__(self, storage: StorageOptions, properties: Mapping[str, str]) -> None:
        self._storage = storage
        self._properties = dict(properties)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Locations) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def _found(self, location: str) -> tuple[fs.FileSystem, str]:
        scheme = location.partition(":")[0]
        storage = self._storage if self._storage.is_given else storage_of_catalog(self._properties, scheme)
        return storage.located(location, [self._properties.get("warehouse", "")])

    # ---- what is used ------------------------------------------------------------------------------------------------

    def get_type_name(self) -> str:
        return "locations"

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_file(self, path: str) -> pa.NativeFile:
        filesystem, found = self._found(path)
        return filesystem.open_input_file(found)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        filesystem, found = self._found(path)
        return filesystem.open_input_stream(found)

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        infos = []
        for path in paths:
            filesystem, found = self._found(path)
            info = filesystem.get_file_info(found)
            infos.append(fs.FileInfo(path, info.type, size=info.size))
        return infos

    # ---- what is not -------------------------------------------------------------------------------------------------

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("the files of a table are only read")

    get_file_info_selector = _refused
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refused
    move = copy_file = open_output_stream = open_append_stream = _refused
