"""The writer, through the storage, on a store in memory."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.changelogs import ALL, ScriptedStore, columns, handle_of, values_of

import statelog as sl
from statelog import changelog as cl


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
def storage(store: ScriptedStore) -> Iterator[cl.FsStateChangelogStorage]:
    with cl.FsStateChangelogStorage(store, job_id="job") as opened:
        yield opened


@pytest.fixture
def writer(storage: cl.FsStateChangelogStorage) -> cl.FsStateChangelogWriter:
    return storage.create_writer("operator", ALL)


def sqn(value: int) -> cl.SequenceNumber:
    return cl.SequenceNumber(value)


def test_what_was_appended_is_read_back(
    storage: cl.FsStateChangelogStorage, writer: cl.FsStateChangelogWriter, store: ScriptedStore
) -> None:
    writer.append(5, b"one")
    writer.append_batch(*columns([(7, b"two"), (5, b"three"), (0, b"")]))
    writer.append_meta(b"about")
    writer.append(5, b"four")
    handle = handle_of(writer.persist(writer.initial_sequence_number(), 7).result(60))
    assert [
        (-1, b"about"),
        (0, b""),
        (5, b"one"),
        (5, b"three"),
        (5, b"four"),
        (7, b"two"),
    ] == list(storage.read(handle))
    assert 7 == handle.checkpoint_id
    assert 3 + 3 + 5 + 0 + 5 + 4 == handle.size_bytes == handle.incremental_size_bytes
    assert ["job/dstl"] == [path.rsplit("/", 1)[0] for path in store.objects]


def test_numbers_move_only_when_something_was_appended(writer: cl.FsStateChangelogWriter) -> None:
    assert sqn(0) == writer.initial_sequence_number() == writer.next_sequence_number()
    writer.append(1, b"a")
    assert sqn(1) == writer.next_sequence_number() == writer.next_sequence_number()
    writer.append_batch(*columns([(1, b"b")]))
    assert sqn(2) == writer.next_sequence_number()


def test_an_empty_range_completes_at_once(writer: cl.FsStateChangelogWriter) -> None:
    future = writer.persist(sqn(0))
    assert future.done()
    handle = handle_of(future.result())
    assert ((), 0, 0) == (
        handle.handles_and_offsets,
        handle.size_bytes,
        handle.incremental_size_bytes,
    )


def test_sets_are_uploaded_once_however_often_they_are_persisted(
    writer: cl.FsStateChangelogWriter, store: ScriptedStore
) -> None:
    writer.append(1, b"a")
    first = handle_of(writer.persist(sqn(0), 1).result(60))
    writer.append(1, b"bb")
    second = handle_of(writer.persist(sqn(0), 2).result(60))
    again = handle_of(writer.persist(sqn(0), 3).result(60))
    assert 2 == store.requests["put"]
    assert (1, 1) == (first.size_bytes, first.incremental_size_bytes)
    assert (3, 2) == (second.size_bytes, second.incremental_size_bytes)
    assert (3, 0) == (again.size_bytes, again.incremental_size_bytes)
    assert second.handles_and_offsets == again.handles_and_offsets
    assert first.handles_and_offsets == second.handles_and_offsets[:1]


def test_a_refused_persist_cuts_nothing(writer: cl.FsStateChangelogWriter) -> None:
    writer.append(1, b"a")
    with pytest.raises(cl.ChangesNotAppendedError):
        writer.persist(sqn(1))
    assert sqn(1) == writer.next_sequence_number()
    writer.truncate(sqn(1))
    with pytest.raises(cl.ChangesTruncatedError, match="below 1"):
        writer.persist(sqn(0))


@pytest.mark.parametrize("key_group", [9, 21, -1, 2**40])
def test_a_foreign_group_is_refused(storage: cl.FsStateChangelogStorage, key_group: int) -> None:
    writer = storage.create_writer("operator", sl.KeyGroupRange(10, 20))
    with pytest.raises(cl.KeyGroupOutOfRangeError):
        writer.append(key_group, b"x")
    with pytest.raises(cl.KeyGroupOutOfRangeError):
        writer.append_batch(np.array([10, key_group, 20]), pa.array([b"x"] * 3, pa.binary()))
    assert sqn(0) == writer.next_sequence_number(), "nothing was appended"


@pytest.mark.parametrize(
    ("key_groups", "values"),
    [
        ([1, 2], pa.array([b"a"], pa.binary())),
        ([1], pa.array([None], pa.binary())),
        ([1], pa.array(["text"])),
        ([1.5], pa.array([b"a"], pa.binary())),
        ([[1]], pa.array([b"a"], pa.binary())),
        ([1], [b"a"]),
    ],
    ids=["lengths", "null", "text", "float", "table", "list"],
)
def test_columns_that_do_not_fit_are_refused(
    writer: cl.FsStateChangelogWriter, key_groups: object, values: object
) -> None:
    with pytest.raises(sl.UsageError):
        writer.append_batch(key_groups, values)  # type: ignore[arg-type]
    assert sqn(0) == writer.next_sequence_number()


def test_values_must_be_bytes_and_buffers_are_copied(
    storage: cl.FsStateChangelogStorage, writer: cl.FsStateChangelogWriter
) -> None:
    with pytest.raises(sl.UsageError, match="str"):
        writer.append(1, "text")  # type: ignore[arg-type]
    buffer = bytearray(b"before")
    writer.append(1, buffer)  # type: ignore[arg-type]
    key_groups = np.array([1], np.int32)
    writer.append_batch(key_groups, pa.array([b"batch"], pa.large_binary()))
    buffer[:] = b"after!"
    key_groups[0] = 99
    handle = handle_of(writer.persist(sqn(0)).result(60))
    assert [(1, b"before"), (1, b"batch")] == list(storage.read(handle))


def test_a_closed_writer_raises_and_closes_again(writer: cl.FsStateChangelogWriter) -> None:
    writer.append(1, b"a")
    writer.close()
    writer.close()
    for call in (
        lambda: writer.append(1, b"b"),
        lambda: writer.append(999, b"b"),
        lambda: writer.append_meta(b"b"),
        lambda: writer.append_batch(*columns([(1, b"b")])),
        lambda: writer.persist(sqn(0)),
        writer.next_sequence_number,
    ):
        with pytest.raises(cl.WriterClosedError):
            call()
    writer.truncate(sqn(0))
    writer.reset(sqn(0), sqn(0), 1)


def test_a_closed_storage_makes_no_writers_and_closes_its_own(store: ScriptedStore) -> None:
    storage = cl.FsStateChangelogStorage(store)
    writer = storage.create_writer("operator", ALL)
    storage.close()
    storage.close()
    with pytest.raises(cl.WriterClosedError):
        writer.append(1, b"a")
    with pytest.raises(sl.ClosedError):
        storage.create_writer("operator", ALL)


@pytest.mark.parametrize("key_groups", [sl.KeyGroupRange.empty(), sl.KeyGroupRange(0, 32768)])
def test_a_writer_needs_key_groups_that_the_format_can_hold(
    storage: cl.FsStateChangelogStorage, key_groups: sl.KeyGroupRange
) -> None:
    with pytest.raises(sl.UsageError):
        storage.create_writer("operator", key_groups)


def test_a_slice_of_columns_is_appended_as_it_looks(
    storage: cl.FsStateChangelogStorage, writer: cl.FsStateChangelogWriter
) -> None:
    values = pa.array([b"no", b"yes", b"yes too", b"no"], pa.binary()).slice(1, 2)
    writer.append_batch(np.array([3, 3], np.uint8), values)
    handle = handle_of(writer.persist(sqn(0)).result(60))
    assert [b"yes", b"yes too"] == values_of(storage.read(handle))
    assert 10 == handle.size_bytes


def test_the_threshold_uploads_without_a_checkpoint(store: ScriptedStore) -> None:
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=10)
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(1, b"123456789")
        assert 0 == store.requests["put"]
        writer.append(1, b"0")
        assert sqn(1) == writer.next_sequence_number()
        handle = handle_of(writer.persist(sqn(0)).result(60))
        assert (1, 10) == (store.requests["put"], handle.incremental_size_bytes)


def test_a_batch_reaching_the_threshold_is_uploaded(store: ScriptedStore) -> None:
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=10)
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append_batch(*columns([(1, b"12345"), (2, b"67890")]))
        assert sqn(1) == writer.next_sequence_number()
        assert 10 == handle_of(writer.persist(sqn(0)).result(60)).size_bytes
        assert 1 == store.requests["put"]


def test_a_confirmed_file_is_never_deleted_and_others_are(
    storage: cl.FsStateChangelogStorage, writer: cl.FsStateChangelogWriter, store: ScriptedStore
) -> None:
    writer.append(1, b"a")
    writer.persist(sqn(0), 1).result(60)
    (first,) = store.objects
    writer.confirm(sqn(0), sqn(1), 1)
    writer.append(1, b"b")
    writer.persist(sqn(0), 2).result(60)
    writer.truncate(sqn(2))
    storage.close()
    assert [first] == list(store.objects)


def test_checkpoints_in_flight_may_be_confirmed_in_any_order(
    storage: cl.FsStateChangelogStorage, writer: cl.FsStateChangelogWriter
) -> None:
    writer.append(1, b"a")
    one = writer.persist(sqn(0), 1)
    writer.append(1, b"b")
    two = writer.persist(sqn(0), 2)
    second = handle_of(two.result(60))
    writer.confirm(sqn(0), sqn(2), 2)
    writer.reset(sqn(0), sqn(1), 1)
    writer.confirm(sqn(0), sqn(1), 1)
    writer.truncate(sqn(2))
    assert [b"a", b"b"] == values_of(storage.read(second))
    assert [b"a"] == values_of(storage.read(handle_of(one.result(60))))


@pytest.mark.parametrize(("from_sqn", "to_sqn"), [(1, 0), (0, 2)])
def test_a_confirmation_must_be_of_something(
    writer: cl.FsStateChangelogWriter, from_sqn: int, to_sqn: int
) -> None:
    writer.append(1, b"a")
    writer.next_sequence_number()
    with pytest.raises(sl.UsageError):
        writer.confirm(sqn(from_sqn), sqn(to_sqn), 1)


@pytest.mark.parametrize("truncated_first", [False, True])
def test_a_confirmation_during_the_upload_keeps_the_file(truncated_first: bool) -> None:
    gate = threading.Event()

    class Gated(ScriptedStore):
        def put(self, path: str, data: Any) -> None:
            assert gate.wait(20)
            super().put(path, data)

    store = Gated()
    with cl.FsStateChangelogStorage(store, job_id="job") as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(5, b"change")
        start, end = writer.initial_sequence_number(), writer.next_sequence_number()
        future = writer.persist(start, checkpoint_id=1)
        writer.confirm(start, end, checkpoint_id=1)
        if truncated_first:
            writer.truncate(end)
        gate.set()
        handle = handle_of(future.result(20))
        writer.truncate(end)
        writer.close()
        storage.registry.close()
        assert [b"change"] == values_of(storage.read(handle))
        (entry,) = handle.handles_and_offsets
        assert storage.registry.owner(entry.handle) is None, "the checkpoint deletes it"
    assert [b"change"] == values_of(cl.read_changes(store, handle))
