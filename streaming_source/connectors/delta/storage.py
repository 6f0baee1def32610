"""Options of a file system for `deltalake`, which has other names for them than `pyarrow.fs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streaming_source.data_files.stores import StorageOptions
from streaming_source.exceptions import OptionError

_S3: Final = {
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_REGION",
    "endpoint_override": "AWS_ENDPOINT_URL",
    "anonymous": "AWS_SKIP_SIGNATURE",
    "role_arn": "AWS_IAM_ROLE_ARN",
    "session_name": "AWS_IAM_ROLE_SESSION_NAME",
    "force_virtual_addressing": "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
}
_AZURE: Final = {
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "tenant_id": "AZURE_TENANT_ID",
    "client_id": "AZURE_CLIENT_ID",
    "client_secret": "AZURE_CLIENT_SECRET",
}
_GCS: Final = {"anonymous": "GOOGLE_SKIP_SIGNATURE"}

_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys(("s3", "s3a"), _S3),
    **dict.fromkeys(("abfs", "abfss"), _AZURE),
    **dict.fromkeys(("gs", "gcs"), _GCS),
}

_SECONDS: Final = {"request_timeout": "timeout", "connect_timeout": "connect_timeout"}
"""Which pyarrow takes in seconds, and deltalake with a unit."""

_OF_PYARROW: Final = (
    *("allow_bucket_creation", "allow_bucket_deletion", "allow_delayed_open", "background_writes"),
    *("check_directory_existence_before_creation", "scheme"),
)
"""Which say nothing of how a log is read."""


def storage_options(uri: str, storage: StorageOptions) -> dict[str, str] | None:
    """Return what `deltalake` takes for the options of `pyarrow.fs`.

    An `OptionError` for one that it has no name for.
    """
    storage = storage.current()
    if not storage.values:
        return None
    scheme = uri.partition(":")[0].lower()
    known, given = _NAMES.get(scheme, {}), dict(storage.values)
    found = {}
    for name, value in given.items():
        if name in known:
            found[known[name]] = value
        elif name in _SECONDS:
            found[_SECONDS[name]] = f"{round(float(value) * 1000)}ms"
        elif name not in _OF_PYARROW:
            names = ", ".join(sorted({*known, *_SECONDS, *_OF_PYARROW}))
            raise OptionError(
                f"option storage.{name}: the log of a Delta table is read by deltalake, which has nothing like it for "
                f"{scheme}; known are {names}. Take one of these, or set it in the environment"
            )
    endpoint = found.get("AWS_ENDPOINT_URL")
    if endpoint is not None:
        has_scheme = "://" in endpoint
        found["AWS_ENDPOINT_URL"] = endpoint if has_scheme else f"{given.get('scheme', 'https')}://{endpoint}"
        found["AWS_ALLOW_HTTP"] = str(found["AWS_ENDPOINT_URL"].startswith("http://")).lower()
    return found
