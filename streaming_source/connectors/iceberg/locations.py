"""A file system of locations: a table's files may be in several stores, and their paths are no URIs.

What an Iceberg table writes as the location of a file has a scheme and a path, as a URI has them, but nothing in its
path is escaped: `p=a%2Fb` is the name of a directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyarrow import fs

from streaming_source.data_files.stores import StorageOptions

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
