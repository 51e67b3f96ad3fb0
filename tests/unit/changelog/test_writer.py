"""The writer, through the storage, on a store in memory."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from tests.support.changelogs import ALL, GatedStore, ScriptedStore, columns, handle_of, values_of

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


def test_what_was_appended_is_read_back(storage, writer, store):
    writer.append(5, b"one")
    writer.append_batch(*columns([(7, b"two"), (5, b"three"), (0, b"")]))
    writer.append_meta(b"about")
    writer.append(5, b"four")
    handle = handle_of(writer.persist(writer.initial_sequence_number(), 7).result(60))
    of_group_5 = [(5, b"one"), (5, b"three"), (5, b"four")]
    assert [(-1, b"about"), (0, b""), *of_group_5, (7, b"two")] == list(storage.read(handle))
    assert 7 == handle.checkpoint_id
    assert 3 + 3 + 5 + 0 + 5 + 4 == handle.size_bytes == handle.incremental_size_bytes
    assert ["job/dstl"] == [path.rsplit("/", 1)[0] for path in store.objects]


def test_numbers_move_only_when_something_was_appended(writer):
    assert 0 == int(writer.initial_sequence_number()) == int(writer.next_sequence_number())
    writer.append(1, b"a")
    assert 1 == int(writer.next_sequence_number()) == int(writer.next_sequence_number())
    writer.append_batch(*columns([(1, b"b")]))
    assert 2 == int(writer.next_sequence_number())


def test_an_empty_range_completes_at_once(writer):
    future = writer.persist(0)
    assert future.done()
    handle = handle_of(future.result())
    assert ((), 0) == (handle.handles_and_offsets, handle.incremental_size_bytes)
    assert 0 == handle.size_bytes


def test_sets_are_uploaded_once_however_often_they_are_persisted(writer, store):
    writer.append(1, b"a")
    first = handle_of(writer.persist(0, 1).result(60))
    writer.append(1, b"bb")
    second = handle_of(writer.persist(0, 2).result(60))
    again = handle_of(writer.persist(0, 3).result(60))
    assert 2 == store.requests["put"]
    assert (1, 1) == (first.size_bytes, first.incremental_size_bytes)
    assert (3, 2) == (second.size_bytes, second.incremental_size_bytes)
    assert (3, 0) == (again.size_bytes, again.incremental_size_bytes)
    assert second.handles_and_offsets == again.handles_and_offsets
    assert first.handles_and_offsets == second.handles_and_offsets[:1]


def test_a_refused_persist_cuts_nothing(writer):
    writer.append(1, b"a")
    with pytest.raises(cl.ChangesNotAppendedError):
        writer.persist(1)
    assert 1 == int(writer.next_sequence_number())
    writer.truncate(1)
    with pytest.raises(cl.ChangesTruncatedError, match="below 1"):
        writer.persist(0)


@pytest.mark.parametrize("key_group", [9, 21, -1, 2**40])
def test_a_foreign_group_is_refused(storage, key_group):
    writer = storage.create_writer("operator", sl.KeyGroupRange(10, 20))
    with pytest.raises(cl.KeyGroupOutOfRangeError):
        writer.append(key_group, b"x")
    with pytest.raises(cl.KeyGroupOutOfRangeError):
        writer.append_batch(np.array([10, key_group, 20]), pa.array([b"x"] * 3, pa.binary()))
    assert 0 == int(writer.next_sequence_number()), "nothing was appended"


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
def test_columns_that_do_not_fit_are_refused(writer, key_groups, values):
    with pytest.raises(sl.UsageError):
        writer.append_batch(key_groups, values)
    assert 0 == int(writer.next_sequence_number())


def test_values_must_be_bytes_and_buffers_are_copied(storage, writer):
    with pytest.raises(sl.UsageError, match="str"):
        writer.append(1, "text")
    buffer = bytearray(b"before")
    writer.append(1, buffer)
    key_groups = np.array([1], np.int32)
    writer.append_batch(key_groups, pa.array([b"batch"], pa.large_binary()))
    buffer[:] = b"after!"
    key_groups[0] = 99
    handle = handle_of(writer.persist(0).result(60))
    assert [(1, b"before"), (1, b"batch")] == list(storage.read(handle))


def test_a_closed_writer_raises_and_closes_again(writer):
    writer.append(1, b"a")
    writer.close()
    writer.close()
    for call in (
        lambda: writer.append(1, b"b"),
        lambda: writer.append(999, b"b"),
        lambda: writer.append_meta(b"b"),
        lambda: writer.append_batch(*columns([(1, b"b")])),
        lambda: writer.persist(0),
        writer.next_sequence_number,
    ):
        with pytest.raises(cl.WriterClosedError):
            call()
    writer.truncate(0)
    writer.reset(0, 0, 1)


@pytest.mark.parametrize("key_groups", [sl.KeyGroupRange.empty(), sl.KeyGroupRange(0, 32768)])
def test_a_writer_needs_key_groups_that_the_format_can_hold(storage, key_groups):
    with pytest.raises(sl.UsageError):
        storage.create_writer("operator", key_groups)


def test_a_slice_of_columns_is_appended_as_it_looks(storage, writer):
    values = pa.array([b"no", b"yes", b"yes too", b"no"], pa.binary()).slice(1, 2)
    writer.append_batch(np.array([3, 3], np.uint8), values)
    handle = handle_of(writer.persist(0).result(60))
    assert [b"yes", b"yes too"] == values_of(storage.read(handle))
    assert 10 == handle.size_bytes


@pytest.mark.parametrize("in_batches", [False, True])
def test_the_threshold_uploads_without_a_checkpoint(store, in_batches):
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=10)
    with cl.FsStateChangelogStorage(store, options=options) as storage:
        writer = storage.create_writer("operator", ALL)
        for value in (b"123456789", b"0"):
            assert 0 == store.requests["put"]
            if in_batches:
                writer.append_batch(*columns([(1, value[:1]), (2, value[1:])]))
            else:
                writer.append(1, value)
        assert 1 == int(writer.next_sequence_number())
        handle = handle_of(writer.persist(0).result(60))
        assert (1, 10, 10) == (
            store.requests["put"],
            handle.size_bytes,
            handle.incremental_size_bytes,
        )


def test_a_confirmed_file_is_never_deleted_and_others_are(storage, writer, store):
    writer.append(1, b"a")
    writer.persist(0, 1).result(60)
    (first,) = store.objects
    writer.confirm(0, 1, 1)
    writer.append(1, b"b")
    writer.persist(0, 2).result(60)
    writer.truncate(2)
    storage.close()
    assert [first] == list(store.objects)


def test_checkpoints_in_flight_may_be_confirmed_in_any_order(storage, writer):
    writer.append(1, b"a")
    first = writer.persist(0, 1)
    writer.append(1, b"b")
    second = handle_of(writer.persist(0, 2).result(60))
    writer.confirm(0, 2, 2)
    writer.reset(0, 1, 1)
    writer.confirm(0, 1, 1)
    writer.truncate(2)
    assert [b"a", b"b"] == values_of(storage.read(second))
    assert [b"a"] == values_of(storage.read(handle_of(first.result(60))))


@pytest.mark.parametrize(("from_sqn", "to_sqn"), [(1, 0), (0, 2)])
def test_a_confirmation_must_be_of_something(writer, from_sqn, to_sqn):
    writer.append(1, b"a")
    writer.next_sequence_number()
    with pytest.raises(sl.UsageError):
        writer.confirm(from_sqn, to_sqn, 1)


@pytest.mark.parametrize("truncated_first", [False, True])
def test_a_confirmation_during_the_upload_keeps_the_file(truncated_first):
    store = GatedStore()
    with cl.FsStateChangelogStorage(store, job_id="job") as storage:
        writer = storage.create_writer("operator", ALL)
        writer.append(5, b"change")
        start, end = writer.initial_sequence_number(), writer.next_sequence_number()
        future = writer.persist(start, checkpoint_id=1)
        writer.confirm(start, end, checkpoint_id=1)
        if truncated_first:
            writer.truncate(end)
        store.gate.set()
        handle = handle_of(future.result(20))
        writer.truncate(end)
        writer.close()
        storage.registry.close()
        assert [b"change"] == values_of(storage.read(handle))
        (entry,) = handle.handles_and_offsets
        assert storage.registry.owner(entry.handle) is None, "the checkpoint deletes it"
    assert [b"change"] == values_of(cl.read_changes(store, handle))
