"""Small things that most changelog tests need."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from statelog.changelog.registry import TaskChangelogRegistry
from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.batching import BatchingStateChangeUploadScheduler
from statelog.changelog.upload.scheduler import (
    DirectStateChangeUploadScheduler,
    InlineStateChangeUploader,
)
from statelog.changelog.upload.task import UploadTask
from statelog.changelog.upload.uploader import StateChangeFsUploader
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.core.retry_policy import RetryPolicy
from statelog.format.segment import SegmentWriter
from statelog.model import (
    ChangeBatch,
    ChangelogStateHandle,
    KeyGroupRange,
    SnapshotResult,
    StateChange,
)
from statelog.runtime.clock import IdSource
from statelog.runtime.runtime import system_runtime
from statelog.store.api import Buffers, ObjectStore
from statelog.store.paths import PATHS, LocationPaths
from statelog.testing.faulty_store import FaultyStore, joined

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


class ScriptedStore(FaultyStore):
    """A store in memory that counts requests; each error in its lists fails one put or delete."""

    url = "scripted://"

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()
        self.put_errors: list[BaseException] = []
        self.delete_errors: list[BaseException] = []
        self.torn = False

    def put(self, path: str, data: Buffers) -> None:
        self.requests["put"] += 1
        if self.put_errors:
            if self.torn:
                content = joined(data)
                self.objects[path] = content[: len(content) // 2]
            raise self.put_errors.pop(0)
        super().put(path, data)

    def get(self, path: str) -> memoryview:
        self.requests["get"] += 1
        return memoryview(self._content(path))

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        self.requests["get_range"] += 1
        return memoryview(self._content(path))[start : start + length]

    def delete(self, paths: Iterable[str]) -> None:
        self.requests["delete"] += 1
        if self.delete_errors:
            raise self.delete_errors.pop(0)
        super().delete(paths)


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
        raise AssertionError("no test asks for it")

    def close(self) -> None:
        pass


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


def batching_storage(
    store: ScriptedStore,
    policy: RetryPolicy,
    *,
    threads: int = 5,
    compress: bool = False,
    **settings: object,
) -> FsStateChangelogStorage:
    """Open a storage with a retry policy; its uploader tracks files in the registry of the storage."""
    runtime = system_runtime(upload_threads=threads)
    registry = TaskChangelogRegistry(store, runtime=runtime)
    uploader = StateChangeFsUploader(
        store, paths=LocationPaths("job"), ids=runtime.ids, compress=compress, registry=registry
    )
    scheduler = BatchingStateChangeUploadScheduler(
        uploader, runtime=runtime, policy=policy, **settings
    )
    return FsStateChangelogStorage(
        store, job_id="job", scheduler=scheduler, registry=registry, runtime=runtime
    )


def appended(storage: FsStateChangelogStorage, *values: bytes) -> FsStateChangelogWriter:
    """Return a new writer with a set that has these values."""
    writer = storage.create_writer("operator", ALL)
    for value in values:
        writer.append(1, value)
    return writer


def persisted(storage: FsStateChangelogStorage, *values: bytes) -> ChangelogStateHandle:
    """Persist the values as one set of a new writer, and return its handle."""
    return handle_of(appended(storage, *values).persist(0, 1).result(60))


def direct_storage(
    store: ObjectStore, ids: IdSource, *, inline_bytes: int = 1 << 20
) -> FsStateChangelogStorage:
    """Open a storage that uploads on the calling thread; small sets stay in their handles."""
    uploader = StateChangeFsUploader(store, paths=PATHS, ids=ids)
    scheduler = DirectStateChangeUploadScheduler(
        InlineStateChangeUploader(inline_bytes, uploader, ids=ids)
    )
    runtime = replace(system_runtime(), ids=ids)
    return FsStateChangelogStorage(store, job_id="", scheduler=scheduler, runtime=runtime)
