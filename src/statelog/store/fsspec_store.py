"""
Stores accessed through fsspec: HDFS, SFTP and others that obstore does not support.

If a file system shows a file while it is written, an object is written under a temporary name and
moved.  A commit needs the exclusive creation of a name, `open(mode="xb")`.  Most file systems of
fsspec have no such mode, and some accept it and overwrite.  So it is tried before the first use,
and the store is refused if it overwrites.  (Their `pipe_file(mode="create")` does not help: by
default it checks first and writes afterwards.)
"""

from __future__ import annotations

import datetime as dt
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, Literal, Protocol

from statelog import extras
from statelog.errors import (
    InvalidOptionsError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    UsageError,
)
from statelog.format.buffers import pieces_of
from statelog.redaction import redacted, without_secrets
from statelog.store.api import Buffers, ObjectInfo
from statelog.store.explain import one_line
from statelog.store.local_disk import check_links, leads_out
from statelog.store.location import normalize_url
from statelog.store.paths import TEMPORARY_FOLDER

_SERVER_OPTIONS: Final = ("endpoint", "host", "port", "url")
_MEMORY: Final = "fsspec.implementations.memory"
_READ_ONLY: Final = ("http", "https", "data", "github", "git")
_WHOLE_AT_ONCE: Final = ("memory", "s3", "gs", "gcs", "az", "abfs", "oss", "cos")
"""Protocols whose files appear when they are complete, and whose move is a copy."""


FileInfo = Mapping[str, Any]
"""Facts about a file; their names and types differ between file systems."""


class _FileSystem(Protocol):
    """The methods of `fsspec.AbstractFileSystem` that statelog uses."""

    protocol: str | Sequence[str]
    use_listings_cache: bool

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def find(self, path: str, *, detail: Literal[True]) -> Mapping[str, FileInfo]: ...
    def info(self, path: str) -> FileInfo: ...
    def isfile(self, path: str) -> bool: ...
    def makedirs(self, path: str, exist_ok: bool) -> None: ...
    def mv(self, path1: str, path2: str) -> None: ...
    def open(self, path: str, mode: Literal["xb"]) -> BinaryIO: ...
    def pipe_file(self, path: str, value: bytes) -> None: ...
    def rm_file(self, path: str) -> None: ...


def open_fsspec_store(location: str, options: Mapping[str, object]) -> FsspecStore:
    """Return the store rooted at *location*; no request is sent before its first use."""
    scheme, separator, _ = location.partition("://")
    if not separator:
        return FsspecStore(normalize_url(location), dict(options))
    protocols = extras.load(repr(redacted(location)), "fsspec", "fsspec").available_protocols()
    if scheme in _READ_ONLY or scheme not in protocols:
        normalize_url(location)  # raises an error that lists the supported schemes
    return FsspecStore(location.rstrip("/"), dict(options))


class FsspecStore:
    """
    An `ObjectStore` over an fsspec file system. Can be pickled: a copy opens its own file system.

    An object is as durable as the file system makes it when a file is closed.  An object of
    `put_if_absent` may be visible while it is written; a reader detects that by the checksums that
    all files of statelog contain.
    """

    def __init__(self, location: str, options: dict[str, object]) -> None:
        self._location = location
        self._options = options
        self._opened: tuple[_FileSystem, str] | None = None
        self._creates = False

    def __reduce__(self) -> tuple[object, ...]:
        return FsspecStore, (self._location, self._options)

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    @property
    def url(self) -> str:
        """The URL of the store's root, without secrets."""
        return redacted(self._location)

    @property
    def endpoint(self) -> str | None:
        """The location, and the servers set in the options; None for local disk and memory."""
        if self._is_on_disk or "memory" in self._protocols:
            return None
        return redacted(" ".join(("fsspec", self._location, *_servers(self._options))))

    @property
    def local_root(self) -> None:
        """None, because files are always accessed through the fsspec file system."""
        return None

    @property
    def file_system(self) -> _FileSystem:
        """The underlying fsspec file system."""
        return self._open()[0]

    @property
    def _root(self) -> str:
        return self._open()[1]

    def _open(self) -> tuple[_FileSystem, str]:
        if self._opened is None:
            core = extras.load(repr(self.url), "fsspec", "fsspec.core")
            try:
                file_system, root = core.url_to_fs(self._location, **self._options)
            except (ImportError, TypeError, ValueError) as error:
                raise InvalidOptionsError(
                    f"fsspec cannot open {self.url!r}: {one_line(error)}"
                ) from without_secrets(error)
            # Cached listings would miss objects of other writers.
            file_system.use_listings_cache = False
            self._opened = file_system, root.rstrip("/")
        return self._opened

    def _name(self, path: str) -> str:
        parts = path.split("/")
        if not path or any(part in ("", ".", "..") for part in parts):
            raise UsageError(f"{path!r} is not an object name", path=path)
        if self._is_on_disk:
            check_links(self._root, path, self.url)
        return f"{self._root}/{path}"

    @property
    def _is_on_disk(self) -> bool:
        """Whether the file system, or one that it wraps, is on local disk."""
        file_system: Any = self.file_system
        while (wrapped := getattr(file_system, "fs", None)) is not None:
            file_system = wrapped
        protocol = file_system.protocol
        names = (protocol,) if isinstance(protocol, str) else protocol
        return "file" in names and os.path.isabs(self._root)

    @contextmanager
    def _explained(
        self, operation: str, path: str, *, writes: bool = False
    ) -> Iterator[_FileSystem]:
        facts = {"path": path, "url": self.url, "operation": operation}
        where = f"{operation} {path or '/'} in {self.url}"
        try:
            yield self.file_system
        except (StoreError, UsageError, InvalidOptionsError):
            raise
        except FileExistsError as error:
            raise ObjectExistsError(
                f"{where}: the object already exists", **facts
            ) from without_secrets(error)
        except (FileNotFoundError, IsADirectoryError) as error:
            if writes:
                raise StoreError(
                    f"{where} failed: {one_line(error)}", **facts
                ) from without_secrets(error)
            raise ObjectNotFoundError(
                f"{where}: the object does not exist", **facts
            ) from without_secrets(error)
        except Exception as error:  # file systems raise what their clients raise
            raise StoreError(f"{where} failed: {one_line(error)}", **facts) from without_secrets(
                error
            )

    def put(self, path: str, data: Buffers) -> None:
        """Write a new object, whose name is unique by construction."""
        name = self._name(path)
        with self._explained("put", path, writes=True) as file_system:
            if self._whole_at_once:
                file_system.pipe_file(name, _joined(data))
                return
            staged = self._write_beside(file_system, path, data)
            self._make_folder(file_system, name)
            file_system.mv(staged, name)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """Write a new object, or raise `ObjectExistsError` and change nothing."""
        name = self._name(path)
        with self._explained("put-if-absent", path, writes=True) as file_system:
            self._try_creation(file_system)
            self._create(file_system, name, _joined(data))

    def get(self, path: str) -> memoryview:
        """Return the whole object, or raise `ObjectNotFoundError`."""
        with self._explained("get", path) as file_system:
            return memoryview(file_system.cat_file(self._name(path)))

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer at the end of the object, none beyond it."""
        if start < 0 or length < 0:
            raise UsageError(
                f"invalid range of {length} bytes from {start}; both must be at least 0", path=path
            )
        if length == 0:
            return memoryview(b"")
        size_bytes = self.head(path).size_bytes
        if start >= size_bytes:
            return memoryview(b"")
        with self._explained("get-range", path) as file_system:
            end = min(start + length, size_bytes)
            return memoryview(file_system.cat_file(self._name(path), start=start, end=end))

    def head(self, path: str) -> ObjectInfo:
        """Return the size and age of an object, or raise `ObjectNotFoundError`."""
        with self._explained("head", path) as file_system:
            info = file_system.info(self._name(path))
            if info["type"] != "file":
                raise FileNotFoundError(path)
            return self._info(info)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder *prefix*, in no particular order."""
        with self._explained("list", prefix) as file_system:
            if prefix and self._is_on_disk and leads_out(self._root, prefix):
                return
            folder = self._name(prefix) if prefix else self._root
            try:
                files = file_system.find(folder, detail=True)
            except FileNotFoundError:
                return
            inside = [info for name, info in files.items() if name != folder]
        yield from map(self._info, inside)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below the folder *prefix*."""
        # File systems keep empty folders, object stores have none: only folders of objects count.
        cut = len(prefix) + 1 if prefix else 0
        names = (info.path[cut:] for info in self.list(prefix))
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; folders, and names that do not exist, are ignored."""
        for path in paths:
            with self._explained("delete", path, writes=True) as file_system:
                name = self._name(path)
                try:
                    if file_system.isfile(name):
                        file_system.rm_file(name)
                except FileNotFoundError:
                    continue

    @property
    def _whole_at_once(self) -> bool:
        return any(name in _WHOLE_AT_ONCE for name in self._protocols)

    @property
    def _protocols(self) -> tuple[str, ...]:
        protocol = self.file_system.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    def _write_beside(self, file_system: _FileSystem, path: str, data: Buffers) -> str:
        short = path.replace("/", "-")[-100:]
        staged = f"{self._root}/{TEMPORARY_FOLDER}/{short}-{os.urandom(8).hex()}"
        self._make_folder(file_system, staged)
        file_system.pipe_file(staged, _joined(data))
        return staged

    def _make_folder(self, file_system: _FileSystem, name: str) -> None:
        file_system.makedirs(name.rpartition("/")[0], exist_ok=True)

    def _create(self, file_system: _FileSystem, name: str, data: bytes) -> None:
        self._make_folder(file_system, name)
        if "memory" in self._protocols:
            # Its own method checks first and writes afterwards; a dict does both in one step.
            memory: Any = file_system
            key = memory._strip_protocol(name)
            memory_file = importlib.import_module(_MEMORY).MemoryFile(memory, key, data)
            if memory.store.setdefault(key, memory_file) is not memory_file:
                raise FileExistsError(name)
            return
        with file_system.open(name, "xb") as file:
            file.write(data)

    def _try_creation(self, file_system: _FileSystem) -> None:
        """Try to create the same name twice; the second attempt must fail."""
        if self._creates:
            return
        name = f"{self._root}/{TEMPORARY_FOLDER}/create-{os.urandom(8).hex()}"
        reason = "it overwrites"
        try:
            self._create(file_system, name, b"1")
            try:
                self._create(file_system, name, b"2")
            except FileExistsError:
                self._creates = True
        except (RuntimeError, TypeError, ValueError) as error:
            reason = one_line(error)
        finally:
            if file_system.exists(name):
                file_system.rm_file(name)
        if not self._creates:
            raise StoreError(
                f"{self.url} cannot create a name exclusively ({reason}), which commits "
                "require: store checkpoints in a different store",
                path="",
                url=self.url,
                operation="put-if-absent",
            )

    def _info(self, info: FileInfo) -> ObjectInfo:
        name = str(info["name"])
        modified = next((info[key] for key in _TIMES if info.get(key) is not None), _NEVER)
        if isinstance(modified, int | float):
            modified = dt.datetime.fromtimestamp(modified, dt.UTC)
        if modified.tzinfo is None:
            modified = modified.replace(tzinfo=dt.UTC)
        return ObjectInfo(name[len(self._root) + 1 :], int(info["size"]), modified)


_TIMES: Final = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")
"""Names of the time of the last write in file systems."""
_NEVER: Final = dt.datetime.max.replace(tzinfo=dt.UTC)
"""An object of unknown age is never old enough for garbage collection."""


def _joined(data: Buffers) -> bytes:
    return b"".join(pieces_of(data))


def _servers(options: Mapping[str, object]) -> list[str]:
    """Return the options that specify a server, and their values."""
    servers: list[str] = []
    for name, value in sorted(options.items()):
        if isinstance(value, Mapping):
            servers += _servers(value)
        elif any(option in name.lower() for option in _SERVER_OPTIONS):
            servers.append(f"{name}={value}")
    return servers
