"""
Stores through obstore: one client for local disk, memory, S3, GCS and Azure.

The client is opened in the process that uses it, never before a fork: an obstore client that was
used before a fork hangs in the child for ever, so such a use is refused with an error.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import obstore
import obstore.exceptions as obstore_errors
import obstore.store

from statelog.errors import (
    InvalidOptionsError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from statelog.store.api import Buffers, ObjectInfo
from statelog.store.paths import TEMPORARY_FOLDER

_SCHEME_ALIASES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}
_REMOTE_SCHEMES: Final = ("s3", "gs", "az", "adl", "azure", "http", "https")
_LIST_CHUNK: Final = 1000

_memory_stores: dict[str, Any] = {}
"""Memory stores of this process by URL, so that two openings of one URL see the same objects."""


def normalize_url(location: str) -> str:
    """
    Return *location* as a URL that obstore understands.

    Plain paths become `file://` URLs; `s3a://`, `abfs://` and the like become obstore's spelling.

    Raises:
        InvalidOptionsError: The location is empty or its scheme is unknown.
    """
    if not location:
        raise InvalidOptionsError("a store location must not be empty")
    scheme, separator, rest = location.partition(":")
    if not separator or len(scheme) < 2 or "/" in scheme:  # a plain path (or a drive letter)
        return "file://" + os.path.abspath(location)
    scheme = _SCHEME_ALIASES.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        # Hadoop and Spark write file:/path, URLs have file:///path: both are one absolute path.
        path = urllib.parse.unquote(rest)
        return "file://" + os.path.abspath("/" + path.lstrip("/"))
    if scheme == "memory":
        return "memory://" + rest.lstrip("/").rstrip("/")
    if scheme in _REMOTE_SCHEMES:
        return f"{scheme}:{rest}".rstrip("/")
    raise InvalidOptionsError(
        f"cannot open {location!r}: unknown scheme {scheme!r}; use a path, file://, memory://, "
        "s3://, gs:// or az://"
    )


def open_store(
    location: str, *, options: Mapping[str, Any] | None = None, fsync: bool = True
) -> ObstoreStore:
    """
    Return the store rooted at *location*; nothing is contacted before the first use.

    Args:
        location: A path, or a `file://`, `memory://`, `s3://` (`s3a://`), `gs://`, `az://`
            (`abfs://`) URL.
        options: Client options of obstore (region, endpoint, credentials, ...).  Without them the
            usual environment variables count.
        fsync: On local disk, make every object durable (file and folders) before a put returns.
            False leaves it to the operating system: a power failure may then lose objects that
            were acknowledged.

    Raises:
        InvalidOptionsError: The location cannot be understood.
    """
    return ObstoreStore(normalize_url(location), dict(options or {}), fsync)


class ObstoreStore:
    """An `ObjectStore` over obstore.  Picklable: the copy opens its own client."""

    def __init__(self, url: str, options: dict[str, Any], fsync: bool) -> None:
        self._url = url
        self._options = options
        self._fsync = fsync
        self._client: Any = None
        self._client_pid = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return ObstoreStore, (self._url, self._options, self._fsync)

    def __repr__(self) -> str:
        return f"ObstoreStore({self._url!r})"

    @property
    def url(self) -> str:
        """Root of the store as a URL."""
        return self._url

    @property
    def local_root(self) -> str | None:
        """Directory of the store if it is on local disk, else None."""
        return self._url.removeprefix("file://") if self._url.startswith("file://") else None

    def _open(self) -> Any:
        pid = os.getpid()
        if self._client is None:
            self._client = _make_client(self._url, self._options)
            self._client_pid = pid
        elif self._client_pid != pid:
            raise StoreError(
                f"store {self._url} was used in process {self._client_pid} before this process "
                f"({pid}) was forked from it; open a new store here, or start processes by spawn",
                path="",
            )
        return self._client

    @contextmanager
    def _explained(self, operation: str, path: str) -> Iterator[Any]:
        try:
            yield self._open()
        except (obstore_errors.AlreadyExistsError, FileExistsError) as error:
            raise ObjectExistsError(
                f"{operation} {path} in {self._url}: the object exists already", path=path
            ) from error
        except (obstore_errors.NotFoundError, FileNotFoundError) as error:
            raise ObjectNotFoundError(
                f"{operation} {path} in {self._url}: no such object", path=path
            ) from error
        except (obstore_errors.BaseError, OSError) as error:
            if isinstance(error, StoreError):
                raise
            reason = str(error).split("\n\nDebug source", 1)[0]
            raise StoreError(
                f"{operation} {path} in {self._url} failed: {reason}", path=path
            ) from error

    def put(self, path: str, data: Buffers) -> None:
        """Write a new object under a name that is unique by construction; durable on return."""
        with self._explained("put", path) as client:
            obstore.put(client, path, _content(data), use_multipart=False)
            self._make_durable(path)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """
        Write a new object, or raise `ObjectExistsError` and change nothing.

        On local disk with fsync the bytes are durable before the name appears.
        """
        with self._explained("put-if-absent", path) as client:
            if self.local_root is None or not self._fsync:
                obstore.put(client, path, _content(data), mode="create", use_multipart=False)
                return
            temporary = f"{TEMPORARY_FOLDER}/{path.replace('/', '-')}-{os.urandom(8).hex()}"
            obstore.put(client, temporary, _content(data), use_multipart=False)
            try:
                _fsync_path(os.path.join(self.local_root, temporary))
                obstore.copy(client, temporary, path, overwrite=False)
                self._fsync_folders(path)
            finally:
                obstore.delete(client, [temporary])

    def get(self, path: str) -> memoryview:
        """Return the whole object, or raise `ObjectNotFoundError`."""
        with self._explained("get", path) as client:
            return memoryview(obstore.get(client, path).bytes())

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only where the object ends."""
        if length == 0:
            return memoryview(b"")
        with self._explained("get-range", path) as client:
            return memoryview(obstore.get_range(client, path, start=start, length=length))

    def head(self, path: str) -> ObjectInfo:
        """Return size and age of the object, or raise `ObjectNotFoundError`."""
        with self._explained("head", path) as client:
            return _info(obstore.head(client, path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder *prefix*, in no particular order."""
        with self._explained("list", prefix) as client:
            for chunk in obstore.list(client, prefix=prefix or None, chunk_size=_LIST_CHUNK):
                for meta in chunk:
                    yield _info(meta)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below the folder *prefix*."""
        with self._explained("list", prefix) as client:
            found = obstore.list_with_delimiter(client, prefix=prefix or None)
            return [name.rstrip("/").rsplit("/", 1)[-1] for name in found["common_prefixes"]]

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; names that do not exist are fine."""
        for path in paths:
            try:
                with self._explained("delete", path) as client:
                    obstore.delete(client, [path])
            except ObjectNotFoundError:
                continue

    def _make_durable(self, path: str) -> None:
        if self.local_root is not None and self._fsync:
            _fsync_path(os.path.join(self.local_root, path))
            self._fsync_folders(path)

    def _fsync_folders(self, path: str) -> None:
        """Make the names durable: the folder of the object, and its parents up to the root."""
        root = self.local_root or ""
        folder = os.path.dirname(os.path.join(root, path))
        while len(folder) >= len(root):
            _fsync_path(folder)
            folder = os.path.dirname(folder)


def _make_client(url: str, options: dict[str, Any]) -> Any:
    try:
        if url.startswith("file://"):
            return obstore.store.LocalStore(url.removeprefix("file://"), mkdir=True)
        if url.startswith("memory://"):
            return _memory_stores.setdefault(url, obstore.store.MemoryStore())
        return obstore.store.from_url(url, **options)
    except (obstore_errors.BaseError, OSError, ValueError) as error:
        reason = str(error).split("\n\nDebug source", 1)[0]
        raise StoreError(f"cannot open store {url}: {reason}", path="") from error


def _content(data: Buffers) -> Any:
    return data if isinstance(data, bytes | bytearray | memoryview) else list(data)


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"])


def _fsync_path(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
