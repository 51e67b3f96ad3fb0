"""Many small sets in one upload: time and memory that grow with their number, not faster."""

import dataclasses
import gc
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.support.changelogs import (
    ALL,
    ScriptedStore,
    batching_storage,
    handle_of,
    values_of,
    wait_until,
)

from statelog import changelog as cl
from statelog.changelog import reader
from statelog.changelog.registry import FileOwner
from statelog.format import segment
from statelog.format.segment import Segment, parse_segment
from statelog.format.trailer import SetEntry


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


def in_columns(storage: cl.FsStateChangelogStorage, handle: cl.ChangelogStateHandle) -> list[bytes]:
    batches = storage.read_batches(handle)
    return [value for batch in batches for value in batch.column(1).to_pylist()]


def singly(storage: cl.FsStateChangelogStorage, handle: cl.ChangelogStateHandle) -> list[bytes]:
    return values_of(storage.read(handle))


def append_sets(writer: cl.FsStateChangelogWriter, count: int) -> list[bytes]:
    """Append sets of one change each, and return the values."""
    values = [b"value %06d" % number for number in range(count)]
    for number, value in enumerate(values):
        writer.append(number % 128, value)
        writer.next_sequence_number()
    return values


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("snappy", [False, True], ids=["plain", "snappy"])
@pytest.mark.parametrize("read", [singly, in_columns])
def test_the_index_of_a_file_is_walked_once_for_all_its_sets(snappy, read):
    options = cl.ChangelogOptions(compression_enabled=snappy)
    with cl.FsStateChangelogStorage(ScriptedStore(), options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 50)
        assert values == read(storage, handle_of(writer.persist(0).result(20)))
    assert CountingSets.walks == 1


def test_many_small_sets_are_uploaded_by_the_first_attempt():
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=2**30)
    with cl.FsStateChangelogStorage(ScriptedStore(), options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 20_000)
        handle = handle_of(writer.persist(0).result(60))
        assert values == singly(storage, handle)
        assert 1 == storage.metrics.snapshot()["number_of_upload_requests"]


def test_a_small_set_takes_little_memory():
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
    assert (python_bytes + arrow_bytes) / 2000 < 600


@pytest.fixture
def small_trailers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framed file names some 650 sets, not 699,000."""
    monkeypatch.setattr(segment, "MAX_CHUNK_LENGTH", 20_000)


def files_of(handle: cl.ChangelogStateHandle) -> list[cl.FileStateHandle]:
    handles = dict.fromkeys(entry.handle for entry in handle.handles_and_offsets)
    return [stream for stream in handles if isinstance(stream, cl.FileStateHandle)]


@pytest.mark.usefixtures("small_trailers")
def test_an_upload_with_too_many_sets_for_a_file_takes_several():
    store = ScriptedStore()
    with batching_storage(store, cl.RetryPolicy.none(), compress=True) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 1500)
        handle = handle_of(writer.persist(0, 1).result(20))
        assert values == singly(storage, handle)
        assert values == in_columns(storage, handle)
        files = files_of(handle)
        assert 3 == len(files) == len(store.objects) == len(storage.registry)
        # Each file has an owner of its own: the first goes with its last set, and not before.
        entries = handle.handles_and_offsets
        per_file = [sum(entry.handle == file for entry in entries) for file in files]
        writer.truncate(per_file[0] - 1)
        assert 3 == len(storage.registry)
        writer.truncate(per_file[0])
        owners = [storage.registry.owner(file) for file in files]
        assert [None, FileOwner.OFFERED, FileOwner.OFFERED] == owners
        end = writer.next_sequence_number()
        writer.confirm(per_file[0], end, 1)
        writer.truncate(end)
        assert 0 == len(storage.registry)
    assert {file.path for file in files[1:]} == set(store.objects)


@pytest.mark.usefixtures("small_trailers")
def test_an_upload_that_fails_at_its_second_file_leaves_none():
    store = ScriptedStore()
    put, calls = store.put, []

    def second_fails(path: str, data: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError("no room")
        put(path, data)

    store.put = second_fails
    policy = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=None, delay_after_failure_s=0.0)
    with batching_storage(store, policy, compress=True) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 1500)
        handle = handle_of(writer.persist(0).result(20))
        assert values == singly(storage, handle)
        assert 5 == len(set(calls)), "names are never used again"
        assert {file.path for file in files_of(handle)} == set(store.objects)


@pytest.mark.usefixtures("small_trailers")
def test_a_late_upload_of_several_files_is_discarded_whole():
    store, released = ScriptedStore(), threading.Event()
    put, calls = store.put, []

    def third_hangs(path: str, data: Any) -> None:
        calls.append(path)
        if len(calls) == 3:
            assert released.wait(20)
        put(path, data)

    store.put = third_hangs
    policy = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=0.2, delay_after_failure_s=0.0)
    with batching_storage(store, policy, compress=True) as storage:
        writer = storage.create_writer("operator", ALL)
        values = append_sets(writer, 1500)
        handle = handle_of(writer.persist(0).result(20))
        released.set()
        wait_until(lambda: len(calls) >= 6, "no late file came")
        wait_until(lambda: len(store.objects) + len(storage.registry) <= 6, "late files stay")
        storage.registry.close(20)
        assert values == singly(storage, handle)
    assert {file.path for file in files_of(handle)} == set(store.objects)
