"""Many small sets in one upload: time and memory that grow with their number, not faster."""

from __future__ import annotations

import dataclasses
import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changelogs import ALL, ScriptedStore, handle_of, wait_until

from statelog import changelog as cl
from statelog.changelog import reader
from statelog.changelog.registry import FileOwner
from statelog.format import segment
from statelog.format.segment import Segment, parse_segment
from statelog.format.trailer import SetEntry
from statelog.runtime.runtime import system_runtime
from statelog.store.paths import LocationPaths

START = cl.SequenceNumber(0)


class CountingSets(tuple[SetEntry, ...]):
    """The index of a file, which counts how often it is walked."""

    walks = 0

    def __iter__(self) -> Iterator[SetEntry]:
        CountingSets.walks += 1
        return super().__iter__()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(data: Any, *, where: str = "") -> Segment:
        file = parse_segment(data, where=where)
        assert file.trailer is not None
        sets = CountingSets(file.trailer.sets)
        return dataclasses.replace(file, trailer=dataclasses.replace(file.trailer, sets=sets))

    monkeypatch.setattr(reader, "parse_segment", parse)
    CountingSets.walks = 0


def singly(storage: cl.FsStateChangelogStorage, handle: cl.ChangelogStateHandle) -> list[bytes]:
    return [change.value for change in storage.read(handle)]


def in_columns(storage: cl.FsStateChangelogStorage, handle: cl.ChangelogStateHandle) -> list[bytes]:
    return [
        value for batch in storage.read_batches(handle) for value in batch.column(1).to_pylist()
    ]


@pytest.mark.parametrize("snappy", [False, True], ids=["plain", "snappy"])
@pytest.mark.parametrize("read", [singly, in_columns])
def test_the_index_of_a_file_is_walked_once_for_all_its_sets(
    counted: None,
    snappy: bool,
    read: Callable[[cl.FsStateChangelogStorage, cl.ChangelogStateHandle], list[bytes]],
) -> None:
    options = cl.ChangelogOptions(compression_enabled=snappy)
    with cl.FsStateChangelogStorage(ScriptedStore(), options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        values = [b"value %d" % number for number in range(50)]
        for value in values:
            writer.append(1, value)
            writer.next_sequence_number()
        handle = handle_of(writer.persist(START).result(20))
        assert values == read(storage, handle)
    assert CountingSets.walks == 1


def append_sets(writer: cl.FsStateChangelogWriter, number: int) -> list[bytes]:
    values = [b"value %06d" % each for each in range(number)]
    for each, value in enumerate(values):
        writer.append(each % 128, value)
        writer.next_sequence_number()
    return values


def test_many_small_sets_are_uploaded_by_the_first_attempt() -> None:
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=2**30)
    with cl.FsStateChangelogStorage(ScriptedStore(), options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 20_000)
        handle = handle_of(writer.persist(START).result(60))
        assert values == singly(storage, handle)
        assert 1 == storage.metrics.snapshot()["number_of_upload_requests"]


def test_a_small_set_takes_little_memory() -> None:
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=2**30)
    with cl.FsStateChangelogStorage(ScriptedStore(), options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        append_sets(writer, 100)
        tracemalloc.start()
        try:
            arrow_bytes = pa.total_allocated_bytes()
            append_sets(writer, 2000)
            gc.collect()
            python_bytes, _ = tracemalloc.get_traced_memory()
            arrow_bytes = pa.total_allocated_bytes() - arrow_bytes
        finally:
            tracemalloc.stop()
    assert (python_bytes + arrow_bytes) / 2000 < 600  # it was 1800


@pytest.fixture
def small_trailers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framed file names some 650 sets, not 699,000."""
    monkeypatch.setattr(segment, "MAX_CHUNK_LENGTH", 20_000)


def storage_of(store: ScriptedStore, policy: cl.RetryPolicy) -> cl.FsStateChangelogStorage:
    runtime = system_runtime()
    registry = cl.TaskChangelogRegistry(store, runtime=runtime)
    uploader = cl.StateChangeFsUploader(
        store, paths=LocationPaths("job"), ids=runtime.ids, compress=True, registry=registry
    )
    scheduler = cl.BatchingStateChangeUploadScheduler(uploader, runtime=runtime, policy=policy)
    return cl.FsStateChangelogStorage(
        store, job_id="job", scheduler=scheduler, registry=registry, runtime=runtime
    )


def files_of(handle: cl.ChangelogStateHandle) -> list[cl.FileStateHandle]:
    handles = dict.fromkeys(entry.handle for entry in handle.handles_and_offsets)
    return [each for each in handles if isinstance(each, cl.FileStateHandle)]


def test_an_upload_with_too_many_sets_for_a_file_takes_several(small_trailers: None) -> None:
    store = ScriptedStore()
    with storage_of(store, cl.RetryPolicy.none()) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 1500)
        handle = handle_of(writer.persist(START, 1).result(20))
        assert values == singly(storage, handle)
        assert values == in_columns(storage, handle)
        files = files_of(handle)
        assert 3 == len(files) == len(store.objects) == len(storage.registry)
        # Each file has an owner of its own: the first goes with its last set, and not before.
        per_file = [
            sum(entry.handle == file for entry in handle.handles_and_offsets) for file in files
        ]
        writer.truncate(cl.SequenceNumber(per_file[0] - 1))
        assert 3 == len(storage.registry)
        writer.truncate(cl.SequenceNumber(per_file[0]))
        assert [None, FileOwner.OFFERED, FileOwner.OFFERED] == [
            storage.registry.owner(file) for file in files
        ]
        end = writer.next_sequence_number()
        writer.confirm(cl.SequenceNumber(per_file[0]), end, 1)
        writer.truncate(end)
        assert 0 == len(storage.registry)
    assert {file.path for file in files[1:]} == set(store.objects)


def test_an_upload_that_fails_at_its_second_file_leaves_none(small_trailers: None) -> None:
    store = ScriptedStore()
    put, calls = store.put, []

    def second_fails(path: str, data: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError("no room")
        put(path, data)

    store.put = second_fails  # type: ignore[method-assign]
    policy = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=None, delay_after_failure_s=0.0)
    with storage_of(store, policy) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 1500)
        handle = handle_of(writer.persist(START).result(20))
        assert values == singly(storage, handle)
        assert 5 == len(set(calls)), "names are never used again"
        assert {file.path for file in files_of(handle)} == set(store.objects)


def test_a_late_upload_of_several_files_is_discarded_whole(small_trailers: None) -> None:
    store, released = ScriptedStore(), threading.Event()
    put, calls = store.put, []

    def third_hangs(path: str, data: Any) -> None:
        calls.append(path)
        if len(calls) == 3:
            assert released.wait(20)
        put(path, data)

    store.put = third_hangs  # type: ignore[method-assign]
    policy = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=0.2, delay_after_failure_s=0.0)
    with storage_of(store, policy) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 1500)
        handle = handle_of(writer.persist(START).result(20))
        released.set()
        wait_until(lambda: len(calls) >= 6, "no late file came")
        wait_until(lambda: len(store.objects) + len(storage.registry) <= 6, "late files stay")
        storage.registry.close(20)
        assert values == singly(storage, handle)
    assert {file.path for file in files_of(handle)} == set(store.objects)
