"""
Open a store with obstore (local disk, memory, S3, GCS, Azure), or otherwise with fsspec.

The client is opened in the process that uses it.  Obstore's threads do not exist in a forked child,
where every store, a new one too, would hang.  So a child refuses every use with an error.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

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
from statelog.options.kinds import SWITCH
from statelog.redaction import redacted, without_secrets
from statelog.store.api import Buffers, ObjectInfo, ObjectStore
from statelog.store.client import (
    Client,
    check_options,
    endpoint,
    fsync_path,
    make_client,
    request_policy,
    without_caches,
)
from statelog.store.explain import is_missing_bucket, one_line
from statelog.store.local_disk import (
    can_write,
    check_links,
    has_outer_folder,
    leads_out,
    with_folders,
    write_object,
)
from statelog.store.location import is_known, kind_of, local_path, normalize_url
from statelog.store.paths import TEMPORARY_FOLDER
from statelog.store.requests import Requests

if TYPE_CHECKING:
    from statelog.store.fsspec_store import FsspecStore

# A listing that continues after a page that failed.

_PAGE: Final = 1000
_EXPRESS_BUCKET: Final = "--x-s3"


def lists_in_order(url: str) -> bool:
    """Return whether the store lists names in order and can start after a given name."""
    bucket = url.partition("://")[2].partition("/")[0]
    kind = kind_of(url)
    return kind is not None and kind.lists_in_order and not bucket.endswith(_EXPRESS_BUCKET)


class Listing:
    """
    A listing of the objects below a folder, page by page.

    After an error the next page continues after the last name.  Where a store does not list in
    order, the listing begins again and the names that were returned are left out.

    Thread: one at a time.
    """

    def __init__(self, prefix: str, *, resumable: bool) -> None:
        self._prefix = prefix or None
        self._resumable = resumable
        self._pages: Iterator[Sequence[obstore.ObjectMeta]] | None = None
        self._last: str | None = None
        self._returned: set[str] = set()

    def next_page(self, client: Client) -> Sequence[obstore.ObjectMeta] | None:
        """Return the next objects, or None at the end; raises obstore's own errors."""
        try:
            if self._pages is None:
                self._pages = iter(
                    obstore.list(client, self._prefix, offset=self._last, chunk_size=_PAGE)
                )
            page = next(self._pages, None)
        except BaseException:
            self._pages = None
            raise
        if page is None:
            return None
        if self._resumable:
            self._last = page[-1]["path"] if page else self._last
            return page
        page = [meta for meta in page if meta["path"] not in self._returned]
        self._returned.update(meta["path"] for meta in page)
        return page


T = TypeVar("T")
_DELETE_CHUNK: Final = 1000  # the limit of S3 for one request
_JOIN_MAX_BYTES: Final = 64 * 1024 * 1024
"""Larger objects are not copied into one piece."""

_used_in_pid = 0
"""The process in which obstore started its threads, which a forked child does not have."""


class ObstoreStore:
    """An `ObjectStore` over obstore. Can be pickled: a copy opens its own client."""

    def __init__(
        self, url: str, options: dict[str, object], fsync: bool, worked: bool = False
    ) -> None:
        self._url = url
        self._local_root = local_path(url)
        self._shown_url = redacted(url)
        self._options = options
        self._fsync = fsync
        self._client: Client | None = None
        policy = request_policy(url, options)
        self._requests = None if policy is None else Requests(policy, worked=worked)

    def __reduce__(self) -> tuple[object, ...]:
        worked = self._requests is not None and self._requests.worked
        return ObstoreStore, (self._url, self._options, self._fsync, worked)

    def __repr__(self) -> str:
        return f"ObstoreStore({self.url!r})"

    @property
    def url(self) -> str:
        """The URL of the store's root, without secrets."""
        return self._shown_url

    @property
    def endpoint(self) -> str | None:
        """The server and the bucket as text, without secrets; None for local disk and memory."""
        return endpoint(self._url, self._options)

    @property
    def local_root(self) -> str | None:
        """The directory of the store if it is on local disk, otherwise None."""
        return self._local_root

    def _open(self) -> Client:
        global _used_in_pid
        pid = os.getpid()
        if _used_in_pid != pid:
            if _used_in_pid:
                raise StoreError(
                    f"store {self.url} cannot be used in process {pid}: it was forked from "
                    f"process {_used_in_pid}, which had already used a store, so it would hang; start "
                    "processes with spawn, or fork before the first use",
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
        if path.startswith("/"):  # obstore would drop it, and a path of local disk would lead away
            raise UsageError(f"{where}: a name in a store must be relative to its root", **facts)
        try:
            yield self._open()
        except StoreError:
            raise
        except (obstore_errors.AlreadyExistsError, FileExistsError) as error:
            raise ObjectExistsError(
                f"{where}: the object already exists", **facts
            ) from without_secrets(error)
        except (obstore_errors.NotFoundError, FileNotFoundError) as error:
            # A write that reports "not found" misses the bucket or folder, not the object.
            if writes or is_missing_bucket(error):
                raise StoreError(
                    f"{where} failed: {one_line(error)}", **facts
                ) from without_secrets(error)
            raise ObjectNotFoundError(
                f"{where}: the object does not exist", **facts
            ) from without_secrets(error)
        except ValueError as error:
            raise UsageError(f"{where}: {one_line(error)}", **facts) from without_secrets(error)
        except (obstore_errors.BaseError, OSError, RuntimeError) as error:
            raise StoreError(f"{where} failed: {one_line(error)}", **facts) from without_secrets(
                error
            )

    def _send(self, call: Callable[[], T]) -> T:
        """Return the result of an operation; retry it if the store is remote."""
        return call() if self._requests is None else self._requests.run(call)

    def _check_links(self, path: str) -> None:
        """Reject an object whose path on local disk leads out of the store through a link."""
        if self._local_root is not None:
            check_links(self._local_root, path, self._shown_url)

    def put(self, path: str, data: Buffers) -> None:
        """Write a new object, whose name is unique by construction; durable on return."""
        self._send(lambda: self._put(path, data))

    def _put(self, path: str, data: Buffers) -> None:
        with self._explained("put", path, writes=True) as client:
            root = self._local_root
            if root is not None and can_write(path):
                # The name itself may be a link: the rename replaces it, and follows it nowhere.
                self._check_links(os.path.dirname(path))
                with_folders(lambda: write_object(root, path, data, fsync=self._fsync))
                if self._fsync:
                    self._fsync_folders(path)
                return
            self._check_links(path)
            with_folders(lambda: obstore.put(client, path, _content(data), use_multipart=False))
            if root is not None and self._fsync:
                fsync_path(os.path.join(root, path))
                self._fsync_folders(path)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """
        Write a new object, or raise `ObjectExistsError` and change nothing.

        On local disk with fsync the bytes are durable before the name appears.  After an attempt
        without an answer the same name is put again.  If it is taken then, the object may be this
        call's own; `create` finds out.

        Raises:
            ObjectExistsError: The name is taken.
            StoreError: The store failed, or answered 409 (another request for the name is in
                progress) to every attempt; the object may exist or not.
        """
        self._send(lambda: self._create(path, data))

    def _create(self, path: str, data: Buffers) -> None:
        with self._explained("put-if-absent", path, writes=True) as client:
            self._check_links(path)
            if self.local_root is None or not self._fsync:
                with_folders(
                    lambda: obstore.put(
                        client, path, _content(data), mode="create", use_multipart=False
                    )
                )
                return
            temporary = f"{TEMPORARY_FOLDER}/{path.replace('/', '-')[-100:]}-{os.urandom(8).hex()}"
            self._check_links(temporary)
            with_folders(
                lambda: obstore.put(client, temporary, _content(data), use_multipart=False)
            )
            try:
                fsync_path(os.path.join(self.local_root, temporary))
                with_folders(lambda: obstore.copy(client, temporary, path, overwrite=False))
                self._fsync_folders(path)
            finally:
                _delete_quietly(client, temporary)

    def get(self, path: str) -> memoryview:
        """Return the whole object, or raise `ObjectNotFoundError`."""
        return self._send(lambda: self._get(path))

    def get_again(self, path: str) -> memoryview:
        """Return the whole object, over a new connection and bypassing caches."""
        if self._requests is None:
            return self.get(path)
        with self._explained("open", path):
            fresh = make_client(self._url, without_caches(self._options), self._fsync)
        return self._requests.run(lambda: self._get(path, fresh))

    def _get(self, path: str, client: Client | None = None) -> memoryview:
        with self._explained("get", path) as usual:
            self._check_links(path)
            return memoryview(obstore.get(client or usual, path).bytes())

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """
        Return *length* bytes from *start*; fewer at the end of the object, none beyond it.

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
        return self._send(lambda: self._get_range(path, start, length))

    def _get_range(self, path: str, start: int, length: int) -> memoryview:
        with self._explained("get-range", path) as client:
            self._check_links(path)
            try:
                return memoryview(obstore.get_range(client, path, start=start, length=length))
            except obstore_errors.BaseError as error:
                # Stores report a range beyond the end in different words; the size decides.
                if "range" in str(error).lower() and start >= obstore.head(client, path)["size"]:
                    return memoryview(b"")
                raise

    def get_tail(self, path: str, length: int) -> tuple[memoryview, int]:
        """Return the last *length* bytes of an object and its size; see `read_tail`."""
        return self._send(lambda: self._get_tail(path, length))

    def _get_tail(self, path: str, length: int) -> tuple[memoryview, int]:
        with self._explained("get-range", path) as client:
            self._check_links(path)
            try:
                answer = obstore.get(client, path, options={"range": {"suffix": length}})
                return memoryview(answer.bytes()), answer.meta["size"]
            except obstore_errors.BaseError as error:
                # Azure has no such range, and a server may refuse one of an empty object.
                if "range" not in str(error).lower() and "support" not in str(error).lower():
                    raise
                size = obstore.head(client, path)["size"]
                start = max(0, size - length)
                data = obstore.get_range(client, path, start=start, end=size) if size else b""
                return memoryview(data), size

    def head(self, path: str) -> ObjectInfo:
        """Return the size and age of an object, or raise `ObjectNotFoundError`."""
        return self._send(lambda: self._head(path))

    def _head(self, path: str) -> ObjectInfo:
        with self._explained("head", path) as client:
            self._check_links(path)
            return _info(obstore.head(client, path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """
        Yield every object below the folder *prefix*, in no particular order.

        A page that fails is requested again; what was yielded is not yielded twice.
        On local disk, folders that are links out of the root are not entered.
        """
        if self.local_root is not None and has_outer_folder(self.local_root, prefix):
            yield from self._list_inside(self.local_root, prefix)
            return
        resumable = self._requests is None or lists_in_order(self._url)
        listing = Listing(prefix, resumable=resumable)

        def next_page() -> Sequence[obstore.ObjectMeta] | None:
            with self._explained("list", prefix) as client:
                return listing.next_page(client)

        while (page := self._send(next_page)) is not None:
            yield from map(_info, page)

    def _list_inside(self, root: str, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects in a folder on local disk, ignoring links that lead out of it."""
        waiting = [prefix]
        while waiting:
            folder = waiting.pop()
            if folder and leads_out(root, folder):
                continue
            with self._explained("list", folder) as client:
                entries = obstore.list_with_delimiter(client, prefix=folder or None)
            yield from map(_info, entries["objects"])
            waiting += [name.rstrip("/") for name in entries["common_prefixes"]]

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of folders directly below *prefix*, except links out of the store."""
        return self._send(lambda: self._list_folders(prefix))

    def _list_folders(self, prefix: str) -> Sequence[str]:
        with self._explained("list", prefix) as client:
            root = self.local_root
            if root is not None and prefix and leads_out(root, prefix):
                return []
            answer = obstore.list_with_delimiter(client, prefix=prefix or None)
            folders = [name.rstrip("/") for name in answer["common_prefixes"]]
            inside = (name for name in folders if root is None or not leads_out(root, name))
            return [name.rsplit("/", 1)[-1] for name in inside]

    def delete(self, paths: Iterable[str]) -> None:
        """
        Delete the objects; names that do not exist are ignored.

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
                        self._send(partial(self._delete, path))
                    except ObjectNotFoundError:
                        continue
                    except StoreError:
                        # A folder is not an object, so no object has this name.
                        if not os.path.isdir(os.path.join(self.local_root or os.devnull, path)):
                            raise

    def _delete(self, path: str) -> None:
        with self._explained("delete", path) as client:
            self._check_links(path)
            obstore.delete(client, path)

    def _delete_together(self, paths: Sequence[str]) -> bool:
        """Delete with one request; return False if Azure or GCS stopped at a missing name."""
        described = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"

        def delete() -> None:
            with self._explained("delete", described) as client:
                obstore.delete(client, paths)

        try:
            self._send(delete)
        except ObjectNotFoundError:
            return False
        return True

    def _fsync_folders(self, path: str) -> None:
        """Sync the folder of the object, and its parents up to the root, to disk."""
        root = self.local_root or ""
        folder = os.path.dirname(os.path.join(root, path))
        while len(folder) >= len(root):
            fsync_path(folder)
            if folder == os.path.dirname(folder):  # the root of the file system
                return
            folder = os.path.dirname(folder)


def _delete_quietly(client: Client, temporary: str) -> None:
    """Try to delete an object; a failure must not make a commit fail."""
    try:
        obstore.delete(client, temporary)
    except (obstore_errors.BaseError, OSError):
        pass


def _content(data: Buffers) -> Buffer | list[Buffer]:
    """Return the content in one piece, if joining it is cheap."""
    if isinstance(data, Buffer):
        return data
    if sum(len(piece) for piece in data) > _JOIN_MAX_BYTES:
        return list(data)
    return joined(data)


def _info(meta: obstore.ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"])


def open_store(
    location: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, object] | None = None,
) -> ObstoreStore | FsspecStore:
    """
    Return the store rooted at *location*; no request is sent before its first use.

    Args:
        location: A path, or a `file://`, `memory://`, `s3://` (`s3a://`), `gs://`, `az://`
            (`abfs://`) URL.  Other schemes (hdfs, sftp, ...) use fsspec.
        storage_options: Client options of obstore (region, endpoint, credentials, ...).  Missing
            ones are taken from the usual environment variables of the process that uses the store.
            `backend="fsspec"` uses fsspec for any location; the other options are then arguments of
            its file system.  `fsync=False` leaves it to the operating system when objects on local
            disk become durable: a power failure may then lose objects that were acknowledged.  By
            default file and folders are durable before a put returns.

    Raises:
        InvalidOptionsError: The location is invalid, or an option is unknown.
    """
    location = arguments.path(location, "location", error=InvalidOptionsError)
    settings = dict(
        arguments.instance(
            {} if storage_options is None else storage_options,
            "storage_options",
            Mapping,
            "a mapping of names to values",
            error=InvalidOptionsError,
        )
    )
    fsync = SWITCH.parse(settings.pop("fsync", True), "store option fsync")
    backend = settings.pop("backend", "obstore" if is_known(location) else "fsspec")
    if backend == "fsspec":
        from statelog.store.fsspec_store import open_fsspec_store

        return open_fsspec_store(location, settings)
    if backend != "obstore":
        raise InvalidOptionsError(f"the store option backend is {backend!r}; use obstore or fsspec")
    url = normalize_url(location)
    check_options(url, settings)
    return ObstoreStore(url, settings, fsync)


# Take a location where a store is expected, as Flink takes a path.


def as_store(
    location: str | os.PathLike[str] | ObjectStore, name: str, methods: Sequence[str]
) -> ObjectStore:
    """Open the store at *location*, or return *location* itself if it is a store."""
    if isinstance(location, str | os.PathLike):
        return open_store(arguments.path(location, name))
    missing = [method for method in methods if not callable(getattr(location, method, None))]
    if missing:
        expected = f"an ObjectStore, a path or a URL (it lacks {', '.join(missing)})"
        raise arguments.refused(name, expected, location)
    return location
