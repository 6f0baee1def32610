"""Which columns a source over files has."""

from __future__ import annotations

import posixpath

import pyarrow as pa

from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.formats import StoredFile
from streaming_source.connectors.files.hive import partition_schema
from streaming_source.connectors.files.listing import ListedFile, list_files
from streaming_source.exceptions import NoDataError, NoSchemaError, OptionError, SchemaError

__all__ = ["chosen_columns"]


def chosen_columns(config: FilesConfig) -> pa.Schema:
    """All columns, or those that the source names; see `FileSource.schema`."""
    if config.columns is None:
        return _all_columns(config)
    try:
        schema = _all_columns(config)
    except NoSchemaError as error:
        raise OptionError(f"columns = {','.join(config.columns)} cannot be looked up: {error}") from None
    missing = [name for name in config.columns if schema.get_field_index(name) < 0]
    if missing:
        raise SchemaError(
            f"columns: {', '.join(map(repr, missing))} not in the data, which has {', '.join(schema.names)}"
        )
    return pa.schema([schema.field(name) for name in config.columns])


def _all_columns(config: FilesConfig) -> pa.Schema:
    """Those of the files as they are told, or of the first one, and those in the names of directories."""
    told = config.data_schema
    if told is not None and config.recursive_file_lookup:
        return told
    first: ListedFile | None = None
    directories = set()
    for file in list_files(config.root):
        first = file if first is None else min(first, file)
        directories.add(file.directory)
    own = _columns_of_first(config, first) if told is None else told
    if config.recursive_file_lookup:
        return own
    named = partition_schema(sorted(directories), {field.name: field.type for field in told or ()})
    # As in Spark: what a directory says goes before what a file has under the same name.
    return pa.schema(list({field.name: field for field in [*own, *named]}.values()))


def _columns_of_first(config: FilesConfig, first: ListedFile | None) -> pa.Schema:
    """Of the first file, or the first that can be read where the source goes on without others."""
    filesystem, root = config.root.open()
    if first is not None:
        with config.tolerance.tolerated():
            return config.format.schema_of(StoredFile(filesystem, posixpath.join(root, first.relative_path)))
        for file in sorted(list_files(config.root)):
            with config.tolerance.tolerated():
                return config.format.schema_of(StoredFile(filesystem, posixpath.join(root, file.relative_path)))
    raise NoDataError(
        f"path {root!r} holds no file yet whose columns could be read; add one, or give readStream a schema"
    )
