"""
Stores through obstore: one client for local disk, memory, S3, GCS and Azure.

The client is opened in the process that uses it.  Obstore's threads do not exist in a forked child,
where every store, a new one too, would hang.  So a child refuses every use with an error.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import obstore
import obstore.exceptions as obstore_errors

from statelog import arguments
from statelog.errors import (
    InvalidOptionsError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    UsageError,
)
from statelog.format.buffers import Buffer, joined
from statelog.redaction import redacted, without_secrets
from statelog.store.api import Buffers, ObjectInfo
from statelog.store.client import Client, check_options, fsync_path, make_client
from statelog.store.explain import is_missing_bucket, one_line
from statelog.store.fsspec_store import FsspecStore, open_fsspec_store
from statelog.store.local_disk import can_write, leads_out, write_object
from statelog.store.location import is_known, kind_of, local_path, normalize_url
from statelog.store.paths import TEMPORARY_FOLDER

__all__ = ["ObstoreStore", "normalize_url", "open_existing_store", "open_store"]

_LIST_CHUNK: Final = 1000
_DELETE_CHUNK: Final = 1000  # the limit of S3 for one request
_WRITE_ATTEMPTS: Final = 3
_JOIN_MAX_BYTES: Final = 64 * 1024 * 1024
"""Larger objects are not copied into one piece."""

_used_in_pid = 0
"""The process in which obstore started its threads, which a forked child does not have."""


def open_store(
    location: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
    fsync: bool = True,
) -> ObstoreStore | FsspecStore:
    """
    Return the store rooted at *location*; no request is sent before the first use.

    Args:
        location: A path, or a `file://`, `memory://`, `s3://` (`s3a://`), `gs://`, `az://`
            (`abfs://`) URL.  Other schemes (hdfs, sftp, ...) use fsspec.
        options: Client options of obstore (region, endpoint, credentials, ...).  Missing ones are
            taken from the usual environment variables of the process that uses the store.
            `backend="fsspec"` uses fsspec for any location; the other options are then arguments
            of its file system.
        fsync: On local disk, make every object durable (file and folders) before a put returns.
            False leaves it to the operating system: a power failure may then lose objects that
            were acknowledged.

    Raises:
        InvalidOptionsError: The location is invalid, or an option is unknown.
    """
    location = arguments.path(location, "location", error=InvalidOptionsError)
    arguments.switch(fsync, "fsync", error=InvalidOptionsError)
    settings = dict(
        arguments.instance(
            {} if options is None else options,
            "options",
            Mapping,
            "a mapping of names to values",
            error=InvalidOptionsError,
        )
    )
    backend = settings.pop("backend", "obstore" if is_known(location) else "fsspec")
    if backend == "fsspec":
        return open_fsspec_store(location, settings)
    if backend != "obstore":
        raise InvalidOptionsError(f"store option backend is {backend!r}; use obstore or fsspec")
    url = normalize_url(location)
    check_options(url, settings)
    return ObstoreStore(url, settings, fsync)


def open_existing_store(
    location: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
    shown: str = "",
) -> ObstoreStore | FsspecStore:
    """
    Return the store rooted at *location*, whose directory must exist if it is on local disk.

    For callers that only read: `open_store` makes the directory at the first use.

    Args:
        location: As for `open_store`.
        options: As for `open_store`.
        shown: What to call it in an error; *location* if left out.

    Raises:
        UsageError: There is no such directory.
        InvalidOptionsError: As `open_store`.
    """
    store = open_store(location, options=options)
    if store.local_root is not None and not os.path.isdir(store.local_root):
        raise UsageError(f"{shown or location}: no such directory")
    return store


class ObstoreStore:
    """An `ObjectStore` over obstore.  Picklable: the copy opens its own client."""

    def __init__(self, url: str, options: dict[str, object], fsync: bool) -> None:
        self._url = url
        self._shown_url = redacted(url)
        self._options = options
        self._fsync = fsync
        self._client: Client | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return ObstoreStore, (self._url, self._options, self._fsync)

    def __repr__(self) -> str:
        return f"ObstoreStore({self.url!r})"

    @property
    def url(self) -> str:
        """Root of the store as a URL, without secrets."""
        return self._shown_url

    @property
    def local_root(self) -> str | None:
        """Directory of the store if it is on local disk, else None."""
        return local_path(self._url)

    def _open(self) -> Client:
        global _used_in_pid
        pid = os.getpid()
        if _used_in_pid != pid:
            if _used_in_pid:
                raise StoreError(
                    f"store {self.url} cannot be used in process {pid}: it was forked from "
                    f"process {_used_in_pid}, which had used a store, and would hang; start "
                    "processes by spawn, or fork before the first use",
                    path="",
                    url=self.url,
                    operation="open",
                )
            _used_in_pid = pid
        if self._client is None:
            self._client = make_client(self._url, self._options, self._fsync)
        return self._client

    @contextmanager
    def _explained(self, operation: str, path: str, *, writes: bool = False) -> Iterator[Client]:
        facts = {"path": path, "url": self.url, "operation": operation}
        where = f"{operation} {path or '/'} in {self.url}"
        try:
            yield self._open()
        except StoreError:
            raise
        except (obstore_errors.AlreadyExistsError, FileExistsError) as error:
            raise ObjectExistsError(
                f"{where}: the object exists already", **facts
            ) from without_secrets(error)
        except (obstore_errors.NotFoundError, FileNotFoundError) as error:
            # A write that reports "not found" misses the bucket or folder, not the object.
            if writes or is_missing_bucket(error):
                raise StoreError(
                    f"{where} failed: {one_line(error)}", **facts
                ) from without_secrets(error)
            raise ObjectNotFoundError(f"{where}: no such object", **facts) from without_secrets(
                error
            )
        except ValueError as error:
            raise UsageError(f"{where}: {one_line(error)}", **facts) from without_secrets(error)
        except (obstore_errors.BaseError, OSError, RuntimeError) as error:
            raise StoreError(f"{where} failed: {one_line(error)}", **facts) from without_secrets(
                error
            )

    def _check_links(self, path: str) -> None:
        """Refuse an object that a link on local disk leads to, out of the root of the store."""
        root = self.local_root
        if root is not None and leads_out(root, path):
            raise StoreError(
                f"{path} in {self.url}: a symbolic link leads out of this directory, which is not "
                "followed: move the objects here, or mount the disk here",
                path=path,
                url=self.url,
                operation="open",
            )

    def put(self, path: str, data: Buffers) -> None:
        """Write a new object under a name that is unique by construction; durable on return."""
        with self._explained("put", path, writes=True) as client:
            root = self.local_root
            if root is not None and can_write(path):
                _with_folders(lambda: write_object(root, path, data, fsync=self._fsync))
                if self._fsync:
                    self._fsync_folders(path)
                return
            _with_folders(lambda: obstore.put(client, path, _content(data), use_multipart=False))
            if root is not None and self._fsync:
                fsync_path(os.path.join(root, path))
                self._fsync_folders(path)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """
        Write a new object, or raise `ObjectExistsError` and change nothing.

        On local disk with fsync the bytes are durable before the name appears.  The client repeats
        a request whose answer was lost and then finds its own object, so `ObjectExistsError` does
        not prove that another writer was first.  S3's 409 is an `ObjectExistsError` too, although
        the name may be free.  A caller that must know reads the object back (`put_or_find`).

        Raises:
            ObjectExistsError: The name is taken, or another request for it is under way.
            StoreError: The store failed; the object may exist or not.
        """
        with self._explained("put-if-absent", path, writes=True) as client:
            if self.local_root is None or not self._fsync:
                _with_folders(
                    lambda: obstore.put(
                        client, path, _content(data), mode="create", use_multipart=False
                    )
                )
                return
            temporary = f"{TEMPORARY_FOLDER}/{path.replace('/', '-')[-100:]}-{os.urandom(8).hex()}"
            _with_folders(
                lambda: obstore.put(client, temporary, _content(data), use_multipart=False)
            )
            try:
                fsync_path(os.path.join(self.local_root, temporary))
                _with_folders(lambda: obstore.copy(client, temporary, path, overwrite=False))
                self._fsync_folders(path)
            finally:
                _delete_quietly(client, temporary)

    def get(self, path: str) -> memoryview:
        """Return the whole object, or raise `ObjectNotFoundError`."""
        with self._explained("get", path) as client:
            self._check_links(path)
            return memoryview(obstore.get(client, path).bytes())

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """
        Return *length* bytes from *start*; fewer only where the object ends, none beyond it.

        Raises:
            UsageError: *start* or *length* is negative.
            ObjectNotFoundError: There is no such object; not checked if *length* is 0.
            StoreError: The store failed.
        """
        if start < 0 or length < 0:
            raise UsageError(
                f"invalid range of {length} bytes from {start}; both must be at least 0", path=path
            )
        if length == 0:
            return memoryview(b"")
        with self._explained("get-range", path) as client:
            self._check_links(path)
            try:
                return memoryview(obstore.get_range(client, path, start=start, length=length))
            except obstore_errors.BaseError as error:
                # Stores report a range beyond the end in different words; the size decides.
                if "range" in str(error).lower() and start >= obstore.head(client, path)["size"]:
                    return memoryview(b"")
                raise

    def head(self, path: str) -> ObjectInfo:
        """Return size and age of the object, or raise `ObjectNotFoundError`."""
        with self._explained("head", path) as client:
            self._check_links(path)
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
        """
        Delete the objects; ignore names that do not exist.

        Raises:
            StoreError: The store failed; some of the objects may be deleted.

        Blocks: On the store, one request for 1000 objects if it has such a request.
        """
        kind = kind_of(self._url)
        in_bulk = kind is not None and kind.is_remote
        waiting = iter(paths)
        while chunk := list(itertools.islice(waiting, _DELETE_CHUNK)):
            if not (in_bulk and self._delete_together(chunk)):
                for path in chunk:
                    try:
                        with self._explained("delete", path) as client:
                            self._check_links(path)
                            obstore.delete(client, path)
                    except ObjectNotFoundError:
                        continue
                    except StoreError:
                        # A folder is not an object, so no object has this name.
                        if not os.path.isdir(os.path.join(self.local_root or os.devnull, path)):
                            raise

    def _delete_together(self, paths: Sequence[str]) -> bool:
        """Delete with one request; False if Azure or GCS stopped at a missing name."""
        shown = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        try:
            with self._explained("delete", shown) as client:
                obstore.delete(client, paths)
        except ObjectNotFoundError:
            return False
        return True

    def _fsync_folders(self, path: str) -> None:
        """Sync the folder of the object and its parents up to the root."""
        root = self.local_root or ""
        folder = os.path.dirname(os.path.join(root, path))
        while len(folder) >= len(root):
            fsync_path(folder)
            folder = os.path.dirname(folder)


def _with_folders(write: Callable[[], object]) -> None:
    """Repeat *write* if its folder was deleted, with the last object in it, meanwhile."""
    for _ in range(_WRITE_ATTEMPTS - 1):
        try:
            write()
        except (obstore_errors.NotFoundError, FileNotFoundError) as error:
            if is_missing_bucket(error):
                raise
        else:
            return
    write()


def _delete_quietly(client: Client, temporary: str) -> None:
    """Delete an object if possible; an error must not fail a commit."""
    try:
        obstore.delete(client, temporary)
    except (obstore_errors.BaseError, OSError):
        pass


def _content(data: Buffers) -> Buffer | list[Buffer]:
    """Return the content in one piece if the copy is cheap."""
    if isinstance(data, Buffer):
        return data
    if sum(len(piece) for piece in data) > _JOIN_MAX_BYTES:
        return list(data)
    return joined(data)


def _info(meta: obstore.ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"])
