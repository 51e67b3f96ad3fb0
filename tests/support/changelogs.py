"""Small things that most changelog tests need."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.task import UploadTask
from statelog.errors import ObjectNotFoundError, StoreError
from statelog.format.segment import SegmentWriter
from statelog.model import (
    ChangeBatch,
    ChangelogStateHandle,
    KeyGroupRange,
    SnapshotResult,
    StateChange,
)
from statelog.store.api import Buffers, ObjectInfo

ALL = KeyGroupRange(0, 127)


def handle_of(result: SnapshotResult[ChangelogStateHandle]) -> ChangelogStateHandle:
    assert result.job_manager_owned is not None
    return result.job_manager_owned


def values_of(changes: Iterable[StateChange]) -> list[bytes]:
    return [change.value for change in changes]


def columns(pairs: list[tuple[int, bytes]]) -> tuple[np.ndarray, pa.Array]:
    return np.array([pair[0] for pair in pairs], np.int32), pa.array(
        [pair[1] for pair in pairs], pa.binary()
    )


class ScriptedStore:
    """A store in memory that fails as told: `failures` puts fail before the next one works."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.put_errors: list[BaseException] = []
        self.delete_errors: list[BaseException] = []
        self.torn = False

    @property
    def url(self) -> str:
        return "scripted://"

    def put(self, path: str, data: Buffers) -> None:
        self.requests["put"] += 1
        whole = isinstance(data, bytes | bytearray | memoryview)
        content = bytes(data) if whole else b"".join(bytes(piece) for piece in data)
        if self.put_errors:
            if self.torn:
                self.objects[path] = content[: len(content) // 2]
            raise self.put_errors.pop(0)
        assert path not in self.objects
        self.objects[path] = content

    def put_if_absent(self, path: str, data: Buffers) -> None:
        self.put(path, data)

    def get(self, path: str) -> memoryview:
        self.requests["get"] += 1
        return memoryview(self._content(path))

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        self.requests["get_range"] += 1
        return memoryview(self._content(path))[start : start + length]

    def _content(self, path: str) -> bytes:

        if path not in self.objects:
            raise ObjectNotFoundError(f"no {path}", path=path)
        return self.objects[path]

    def head(self, path: str) -> ObjectInfo:
        raise StoreError("head is not scripted")

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter(())

    def list_folders(self, prefix: str = "") -> "list[str]":
        return []

    def delete(self, paths: Iterable[str]) -> None:
        self.requests["delete"] += 1
        if self.delete_errors:
            raise self.delete_errors.pop(0)
        for path in paths:
            self.objects.pop(path, None)


class GatedStore(ScriptedStore):
    """The first puts wait until the gate opens; by default one of them."""

    def __init__(self, waiting: float = 1) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()
        self._waiting = waiting

    def put(self, path: str, data: Buffers) -> None:
        self._waiting -= 1
        if self._waiting >= 0:
            self.entered.set()
            assert self.gate.wait(60)
        super().put(path, data)


class HeldScheduler:
    """Keeps every task until the test ends it."""

    def __init__(self) -> None:
        self.tasks: list[UploadTask] = []

    def upload(self, task: UploadTask) -> None:
        self.tasks.append(task)

    @property
    def availability(self) -> object:
        raise AssertionError("nobody asks")

    def close(self) -> None:
        pass


def read_all(storage: FsStateChangelogStorage, handle: ChangelogStateHandle) -> list[StateChange]:
    return list(storage.read(handle))


def changelog_file(seed: int, size: int = 500, compress: bool = False) -> bytes:
    segment = SegmentWriter(compress=compress)
    value = bytes([seed % 251]) * size
    batch = ChangeBatch(np.array([1], np.int32), pa.array([value], pa.binary()))
    segment.add([batch])
    return b"".join(bytes(piece) for piece in segment.finish())


def wait_until(condition: Callable[[], object], what: str = "it did not happen") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)
