"""
Locations: the URL schemes that obstore supports, and one normalized URL per store.

Each scheme is one row.  The client, messages and the tables of docs/how-to/stores.md come from
these rows.  Every other scheme is opened by fsspec, without a row.  How to add one:
docs/contributing/extend.md.

Plain paths, Hadoop's spellings (`s3a://`, `abfss://`, `file:/path`) and URLs become a URL that
obstore supports; a normalized URL is unchanged.
"""

from __future__ import annotations

import dataclasses
import os
import urllib.parse
from typing import Final

from statelog.errors import InvalidOptionsError

NOT_TRIED: Final = "not tested"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """Services on which the store contract was tested; the documentation shows these texts."""

    emulator: str = NOT_TRIED
    server: str = NOT_TRIED
    cloud: str = NOT_TRIED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheme:
    """
    One URL scheme.

    Attributes:
        name: The scheme of normalized URLs, as obstore's `from_url` takes it.
        title: The store's name in the documentation.
        spelling: How messages name it.
        aliases: Other schemes that mean the same store.
        bucket: What the URL names first, "" for a store inside this machine.
        option_keys: obstore's options of this store; the bucket is part of the URL.
        prefixes: What options and environment variables may begin with.
        endpoint_keys: Options that name the server; the first one that is set counts.
        lists_in_order: Whether listings are sorted, and can begin after a name.
        put_if_absent: What makes a put-if-absent atomic.
        tried: On what the contract was tried.
    """

    name: str
    title: str
    spelling: str
    aliases: tuple[str, ...] = ()
    bucket: str = ""
    option_keys: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    endpoint_keys: tuple[str, ...] = ()
    lists_in_order: bool = False
    put_if_absent: str
    tried: Tried

    @property
    def is_remote(self) -> bool:
        """Whether requests go to a server in a different process."""
        return bool(self.bucket)


def words(text: str) -> tuple[str, ...]:
    """Split *text* into names at its spaces."""
    return tuple(text.split())


LOCAL: Final = Scheme(
    name="file",
    title="Local disk, with and without fsync",
    spelling="file://",
    aliases=("local",),
    put_if_absent="a hard link of a synced file",
    tried=Tried(
        emulator="-",
        server="this machine's disk; also a full file system, a size limit and missing permission "
        "in the middle of a write",
        cloud="-",
    ),
)
MEMORY: Final = Scheme(
    name="memory",
    title="Memory",
    spelling="memory://",
    put_if_absent="a lock of the client",
    tried=Tried(emulator="-", server="memory of one process", cloud="-"),
)
S3: Final = Scheme(
    name="s3",
    title="S3",
    spelling="s3:// (s3a://)",
    aliases=("s3a", "s3n"),
    bucket="bucket",
    option_keys=words(
        "access_key_id checksum_algorithm conditional_put container_authorization_token_file "
        "container_credentials_full_uri container_credentials_relative_uri default_region "
        "disable_bulk_delete disable_tagging endpoint endpoint_url imdsv1_fallback "
        "metadata_endpoint region request_payer role_arn role_session_name s3_express "
        "secret_access_key server_side_encryption session_token skip_signature "
        "sse_bucket_key_enabled sse_customer_key_base64 sse_kms_key_id token "
        "unsigned_payload virtual_hosted_style_request web_identity_token_file"
    ),
    prefixes=("aws_",),
    endpoint_keys=("endpoint_url_s3", "endpoint_url", "endpoint"),
    lists_in_order=True,
    put_if_absent="`If-None-Match: *`",
    tried=Tried(
        emulator="moto 5, one put after another: the contract, every request under every fault "
        "above, missing buckets, wrong and missing credentials",
        server="SeaweedFS 4.48: the contract, races of eight writers, commits, two drivers that "
        "are paused and killed",
    ),
)
GCS: Final = Scheme(
    name="gs",
    title="GCS",
    spelling="gs://",
    aliases=("gcs",),
    bucket="bucket",
    option_keys=words(
        "application_credentials base_url bearer_token service_account service_account_key "
        "service_account_path skip_signature"
    ),
    prefixes=("google_",),
    endpoint_keys=("base_url",),
    lists_in_order=True,
    put_if_absent="`x-goog-if-generation-match: 0`",
    tried=Tried(
        emulator="not tested: only how URLs and options reach the client",
        server="-",
    ),
)
AZURE: Final = Scheme(
    name="az",
    title="Azure",
    spelling="az:// or abfs://",
    aliases=("abfs", "abfss", "adl", "azure"),
    bucket="container",
    option_keys=words(
        "access_key account_key account_name authority_host client_id client_secret "
        "credential_type disable_tagging encryption_key endpoint federated_token_file "
        "msi_endpoint msi_resource_id object_id sas_key sas_token skip_signature tenant_id token "
        "use_azure_cli use_emulator use_fabric_endpoint"
    ),
    prefixes=("azure_storage_", "azure_"),
    endpoint_keys=("endpoint",),
    put_if_absent="`If-None-Match: *`",
    tried=Tried(
        emulator="Azurite 3: the contract, races of eight writers, commits",
        server="-",
    ),
)

SCHEMES: Final = (LOCAL, MEMORY, S3, GCS, AZURE)
BY_NAME: Final = {scheme.name: scheme for scheme in SCHEMES}
BY_SPELLING: Final = BY_NAME | {alias: scheme for scheme in SCHEMES for alias in scheme.aliases}
"""Schemes by every name that users may write, in lower case."""


def kind_of(url: str) -> Scheme | None:
    """Return the scheme of a normalized URL, or None for other stores."""
    return BY_NAME.get(url.partition(":")[0])


def is_known(location: str) -> bool:
    """Return whether *location* is a path, or a URL that obstore supports."""
    scheme, separator, _ = location.partition("://")
    if not separator or len(scheme) < 2 or "/" in scheme:
        return True
    return scheme.lower() in BY_SPELLING


def normalize_url(location: str) -> str:
    """
    Convert *location* to a URL that obstore supports.

    Plain paths become `file://` URLs; `s3a://`, `abfs://` and the like become obstore's spelling.
    """
    if not location:
        raise InvalidOptionsError("the store location is empty; pass a path or a URL")
    scheme, separator, rest = location.partition(":")
    if not separator or len(scheme) < 2 or "/" in scheme:  # a plain path (or a drive letter)
        return _file_url(location)
    kind = BY_SPELLING.get(scheme.lower())
    if kind is None:
        spellings = ", ".join(scheme.spelling for scheme in SCHEMES)
        raise InvalidOptionsError(
            f"cannot open {location!r}: unknown scheme {scheme.lower()!r}; use a path, {spellings}"
        )
    if kind is LOCAL:
        # Hadoop and Spark write file:/path, URLs have file:///path: both are one absolute path.
        return _file_url("/" + urllib.parse.unquote(rest).lstrip("/"))
    if kind is MEMORY:
        return "memory://" + rest.strip("/")
    if not rest.startswith("//") or not rest[2:].partition("/")[0]:
        # Without its slashes, credentials in the URL would not be recognized, and shown.
        text = (
            repr(location) if rest.startswith("//") or "@" not in rest else f"the {kind.name} URL"
        )
        raise InvalidOptionsError(
            f"{text} does not contain a {kind.bucket}; use {kind.name}://{kind.bucket}/path"
        )
    return f"{kind.name}:{rest}".rstrip("/")


def _file_url(path: str) -> str:
    # Only "%" is quoted, so the URL stays readable and converts back exactly.
    return "file://" + os.path.abspath(path).replace("%", "%25")


def local_path(url: str) -> str | None:
    """Return the directory in a normalized `file://` URL, or None for any other URL."""
    if kind_of(url) is not LOCAL:
        return None
    return urllib.parse.unquote(url.removeprefix("file://"))
