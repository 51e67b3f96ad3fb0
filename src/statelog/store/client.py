"""
Create obstore clients from a URL and options.

Options are obstore's, in one flat table: of the store, of its HTTP client, of retries.  They
are checked before they reach obstore, because some unknown keys make it end the thread.
"""

from __future__ import annotations

import datetime as dt
import difflib
import os
from collections.abc import Mapping
from typing import Any, Final, SupportsFloat

import obstore.exceptions as obstore_errors
import obstore.store

from statelog.core.retry_policy import RequestPolicy
from statelog.errors import InvalidOptionsError, StoreError
from statelog.redaction import redacted, without_secrets
from statelog.store.explain import one_line
from statelog.store.location import AZURE, MEMORY, SCHEMES, Scheme, kind_of, local_path, words

Client = obstore.store.ObjectStore

_CLIENT_KEYS: Final = words(
    "allow_http allow_invalid_certificates connect_timeout default_content_type default_headers "
    "http1_only http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle "
    "http2_only pool_idle_timeout pool_max_idle_per_host proxy_ca_certificate proxy_excludes "
    "proxy_url randomize_addresses read_timeout root_certificate timeout user_agent"
)
_RETRY_KEYS: Final = ("max_retries", "retry_timeout")
_CREDENTIAL_PROVIDER: Final = "credential_provider"

_memory_stores: dict[str, Client] = {}
"""In-memory stores of this process by URL, so that equal URLs share their objects."""


def check_options(url: str, options: Mapping[str, object]) -> None:
    """Reject options that the store at *url* does not have."""
    _arguments(url, options)


def request_policy(url: str, options: Mapping[str, object]) -> RequestPolicy | None:
    """Return when to retry requests to the store at *url*; None for local disk and memory."""
    kind = kind_of(url)
    if kind is None or not kind.is_remote:
        return None
    plain = {_plain(kind, name): value for name, value in options.items()}
    numbers = {key: _number(key, plain[key]) for key in _RETRY_KEYS if key in plain}
    defaults = RequestPolicy()
    return RequestPolicy(
        max_retries=int(numbers.get("max_retries", defaults.max_retries)),
        retry_timeout_s=numbers.get("retry_timeout", defaults.retry_timeout_s),
    )


def endpoint(url: str, options: Mapping[str, object]) -> str | None:
    """
    Return the server and the bucket in a normalized URL as text, without secrets.

    None for local disk and memory.  Without an option or variable that names the server, it is the
    provider's own.
    """
    kind = kind_of(url)
    if kind is None or not kind.is_remote:
        return None
    plain = {_plain(kind, name): value for name, value in options.items()}
    servers = _servers(kind, plain)
    bucket = redacted("/".join(url.split("/", 3)[:3]))
    account = plain.get("account_name", os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""))
    place = f"{bucket} of {account}" if kind is AZURE and account else bucket
    return f"{place} at {redacted(servers[0])}" if servers else place


def make_client(url: str, options: Mapping[str, object], fsync: bool) -> Client:
    """Create obstore's client for a normalized URL, without contacting a server."""
    arguments = _arguments(url, options)
    try:
        root = local_path(url)
        if root is not None:
            _make_root(root, fsync)
            # Empty folders are deleted with their last object, as in an object store.
            return obstore.store.LocalStore(root, automatic_cleanup=True)
        if kind_of(url) is MEMORY:
            return _memory_stores.setdefault(url, obstore.store.MemoryStore())
        # `store/requests.py` repeats requests.  The client must not: it would hide that an earlier
        # attempt of a put-if-absent may have written the object.
        return obstore.store.from_url(url, retry_config={"max_retries": 0}, **arguments)
    except (obstore_errors.BaseError, OSError, TypeError, ValueError) as error:
        raise StoreError(
            f"cannot open store {url}: {one_line(error)}", path="", url=url, operation="open"
        ) from without_secrets(error)


def forget_memory_store(url: str) -> None:
    """Free the objects of an in-memory store once no open store uses them."""
    _memory_stores.pop(url, None)


def without_caches(options: Mapping[str, object]) -> dict[str, object]:
    """Add a header to *options* that makes intermediate caches revalidate with the store."""
    others = {key: value for key, value in options.items() if key.lower() != "default_headers"}
    headers_option = next((value for key, value in options.items() if key not in others), None)
    headers = headers_option if isinstance(headers_option, Mapping) else {}
    return {**others, "default_headers": {**headers, "cache-control": "no-cache"}}


def _arguments(url: str, options: Mapping[str, object]) -> dict[str, Any]:
    """Convert flat options to obstore's arguments."""
    kind = kind_of(url)
    if kind is None or not kind.is_remote:
        if options:
            *first, last = (f"{scheme.name}://" for scheme in SCHEMES if scheme.is_remote)
            raise InvalidOptionsError(
                f"{url} does not take store options; got {', '.join(sorted(options))}; they apply to "
                f"{', '.join(first)} and {last} stores"
            )
        return {}
    arguments: dict[str, Any] = {}
    client: dict[str, object] = {}
    for name, value in options.items():
        key = _plain(kind, name)
        if key in kind.option_keys:
            arguments[key] = value if isinstance(value, bool) else str(value)
        elif key in _CLIENT_KEYS:
            client[key] = (
                value if isinstance(value, bool | bytes | dict | dt.timedelta) else str(value)
            )
        elif key in _RETRY_KEYS:
            _number(key, value)  # for `request_policy`
        elif key == _CREDENTIAL_PROVIDER:
            arguments[key] = value
        else:
            raise InvalidOptionsError(_unknown_key(kind, name))
    client = _client_options(kind, arguments, client)
    if client:
        arguments["client_options"] = client
    return arguments


def _plain(kind: Scheme, key: str) -> str:
    lower = key.lower()
    for prefix in kind.prefixes:
        if lower.startswith(prefix):
            return lower.removeprefix(prefix)
    return lower


def _number(key: str, value: object) -> float:
    number = -1.0
    if isinstance(value, str | SupportsFloat):
        try:
            number = float(value)
        except ValueError:
            pass  # refused below
    if number < 0:
        unit = "seconds" if key == "retry_timeout" else "attempts"
        raise InvalidOptionsError(f"store option {key} must be a number of {unit}, not {value!r}")
    return number


def _unknown_key(kind: Scheme, name: str) -> str:
    accepted = [*kind.option_keys, *_CLIENT_KEYS, *_RETRY_KEYS, _CREDENTIAL_PROVIDER]
    if name.lower().startswith(("fs.", "spark.hadoop.")):
        hint = "Hadoop's options do not apply to this store"
    elif "bucket" in name.lower() or "container" in name.lower():
        hint = "the bucket or container is part of the URL"
    else:
        near = difflib.get_close_matches(_plain(kind, name), accepted, n=1)
        listed = f"{kind.name}:// stores accept {', '.join(sorted(accepted))}"
        hint = f"did you mean {near[0]!r}?" if near else listed
    return f"unknown store option {name!r}; {hint}"


def _client_options(
    kind: Scheme, arguments: Mapping[str, object], from_caller: Mapping[str, object]
) -> dict[str, object]:
    """
    Return the options of the HTTP client; an http:// endpoint allows plain HTTP.

    Obstore ignores client options of the environment as soon as one is passed, so they are read
    here.
    """
    from_environment: dict[str, object] = {}
    for prefix in reversed(kind.prefixes):
        for key in _CLIENT_KEYS:
            value = os.environ.get(f"{prefix}{key}".upper())
            if value:
                from_environment[key] = value
    options = {**from_environment, **from_caller}
    endpoints = _servers(kind, arguments)
    if endpoints and endpoints[0].lower().startswith("http://"):
        # An http:// endpoint is an explicit choice; obstore would refuse it with an unclear error.
        options.setdefault("allow_http", True)
    return options


def _servers(kind: Scheme, arguments: Mapping[str, object]) -> list[str]:
    """Return the servers set in the options, or else in the environment; the first one counts."""
    servers = [str(arguments[key]) for key in kind.endpoint_keys if key in arguments]
    for prefix in reversed(kind.prefixes):
        if not servers:
            named = (os.environ.get(f"{prefix}{key}".upper()) for key in kind.endpoint_keys)
            servers = [value for value in named if value]
    return servers


def _make_root(root: str, fsync: bool) -> None:
    """Create the directory; with *fsync*, make its name and the names of its parents durable."""
    missing = []
    folder = root
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    if missing:  # a place that is only read is not touched
        os.makedirs(root, exist_ok=True)
    for new_folder in missing if fsync else ():
        fsync_path(os.path.dirname(new_folder))


def fsync_path(path: str) -> None:
    """Make a file or folder durable with fsync."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
