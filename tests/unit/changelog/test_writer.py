"""The writer, through the storage, on a store in memory."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.changelogs import (
    ALL,
    GatedStore,
    HeldScheduler,
    ScriptedStore,
    appended,
    columns,
    handle_of,
    values_of,
)

import statelog as sl
from statelog import changelog as cl
from statelog.core.upload_retry import (
    AttemptFailed,
    AttemptStarted,
    StartAttempt,
    UploadRequested,
    UploadRetry,
)
from statelog.runtime.runtime import system_runtime


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
        assert 1 == store.requests["put"]
        assert (10, 10) == (handle.size_bytes, handle.incremental_size_bytes)


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


@pytest.mark.parametrize("close", ["close", "truncate_and_close"])
def test_a_close_beside_the_end_of_a_persist_leaves_a_handle(storage, writer, store, close):
    """The log has completed the persist and keeps its file; a thread has not ended the future yet."""
    decided, closed = threading.Event(), threading.Event()
    offer = storage.registry.offer

    def held(handle):
        decided.set()
        assert closed.wait(60)
        offer(handle)

    storage.registry.offer = held
    writer.append(1, b"value")
    future = writer.persist(0)
    number = writer.next_sequence_number()
    assert decided.wait(60)
    getattr(writer, close)(*([] if close == "close" else [number]))
    closed.set()
    handle = handle_of(future.result(60))
    assert {entry.handle.path for entry in handle.handles_and_offsets} == set(store.objects)
    assert [b"value"] == values_of(storage.read(handle))


GIB_2 = 2**31


@pytest.mark.parametrize("threshold", [5 << 20, 1 << 40])
@pytest.mark.parametrize("how", ["append", "append_meta", "append_batch", "bytearray"])
def test_a_value_of_2_gib_is_refused_and_the_writer_goes_on(how, threshold):
    options = cl.ChangelogOptions(preemptive_persist_threshold_bytes=threshold)
    with cl.FsStateChangelogStorage(ScriptedStore(), options=options) as storage:
        writer = storage.create_writer("op", ALL)
        writer.append(1, b"before")
        value = bytes(GIB_2)  # zero pages: they take no memory until something reads them
        with pytest.raises(sl.UsageError, match="2,147,483,648 bytes is too long"):
            match how:
                case "append":
                    writer.append(1, value)
                case "append_meta":
                    writer.append_meta(value)
                case "bytearray":
                    writer.append(1, memoryview(value))
                case _:
                    offsets = pa.py_buffer(np.array([0, 1, GIB_2 + 1], np.int64))
                    data = pa.py_buffer(bytes(GIB_2 + 1))
                    writer.append_batch(
                        [1, 2], pa.Array.from_buffers(pa.large_binary(), 2, [None, offsets, data])
                    )
        writer.append(2, b"after")
        handle = handle_of(writer.persist(0).result(30))
        assert [b"before", b"after"] == values_of(storage.read(handle))
        assert 11 == handle.size_bytes


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("chunks", [[[b"a", b"bc"]], [[b"a"], [], [b"bc"]]])
def test_chunked_arrays_are_appended_whole(kind, chunks):
    with cl.FsStateChangelogStorage(ScriptedStore()) as storage:
        writer = storage.create_writer("op", ALL)
        writer.append_batch([1, 2], pa.chunked_array(chunks, kind))
        writer.append_batch([], pa.chunked_array([], kind))
        handle = handle_of(writer.persist(0).result(60))
        assert [(1, b"a"), (2, b"bc")] == sorted(storage.read(handle))
        assert 3 == handle.size_bytes


def test_plain_integers_are_sequence_numbers():
    with cl.FsStateChangelogStorage(ScriptedStore()) as storage:
        writer = appended(storage, b"one")
        writer.next_sequence_number()
        writer.append(1, b"two")
        second = handle_of(writer.persist(np.int64(1), 2).result(60))
        assert [b"two"] == values_of(storage.read(second))
    seven = cl.SequenceNumber(7)
    assert cl.SequenceNumber.of(7) == seven == cl.SequenceNumber.of(seven)
    assert 3 in cl.SequenceNumberRange.of(2, cl.SequenceNumber(4))
    assert 4 not in cl.SequenceNumberRange(2, 4)
    assert ["c"] == ["a", "b", "c"][cl.SequenceNumber(2) :]


@pytest.mark.parametrize(
    ("error", "at_once"), [(TimeoutError("slow"), True), (OSError("x"), False)]
)
def test_an_attempt_that_times_out_is_followed_at_once(error, at_once):
    retry = UploadRetry(cl.RetryPolicy.fixed(3, 1.0, delay_after_failure_s=60.0))
    retry.handle(UploadRequested(), 0)
    retry.handle(AttemptStarted(1), 0)
    actions = retry.handle(AttemptFailed(1, error), 0)
    assert at_once == (StartAttempt(2) in actions)
    retry.check_invariants()


class Failing:
    """A part of a storage whose close fails; it counts its calls."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.closes = 0

    def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
        raise OSError("never up")

    def discard(self, result: cl.UploadTasksResult) -> None:
        raise AssertionError("nothing to discard")

    def close(self) -> None:
        self.closes += 1
        raise self.error


class FailingRegistry(cl.TaskChangelogRegistry):
    closes = 0

    def close(self, timeout_s: float = 5.0) -> None:
        self.closes += 1
        raise RuntimeError("second")


def test_close_ends_every_part_and_raises_the_first_error():
    uploader, runtime = Failing(OSError("first")), system_runtime()
    scheduler = cl.BatchingStateChangeUploadScheduler(uploader, runtime=runtime)
    registry = FailingRegistry(ScriptedStore(), runtime=runtime)
    storage = cl.FsStateChangelogStorage(
        ScriptedStore(), scheduler=scheduler, registry=registry, runtime=runtime
    )
    writer = storage.create_writer("op", ALL)
    with pytest.raises(OSError, match="first"):
        storage.close()
    assert (1, 1) == (uploader.closes, registry.closes)
    with pytest.raises(sl.ClosedError):
        writer.append(1, b"")
    with pytest.raises(sl.ClosedError):
        storage.create_writer("late", ALL)
    ended: list[BaseException | None] = []
    runtime.upload_pool.submit(lambda: None, lambda _, error: ended.append(error))
    assert [sl.ClosedError] == [type(error) for error in ended]
    storage.close()  # a second call does nothing
    assert (1, 1) == (uploader.closes, registry.closes)


def test_an_interrupt_while_closing_is_raised_after_the_other_parts_are_closed():
    runtime = system_runtime()
    scheduler = cl.DirectStateChangeUploadScheduler(Failing(KeyboardInterrupt()))
    registry = FailingRegistry(ScriptedStore(), runtime=runtime)
    storage = cl.FsStateChangelogStorage(
        ScriptedStore(), scheduler=scheduler, registry=registry, runtime=runtime
    )
    with pytest.raises(KeyboardInterrupt):
        storage.close()
    assert 1 == registry.closes


def test_the_error_of_a_block_is_not_hidden_by_the_close():
    scheduler = cl.DirectStateChangeUploadScheduler(Failing(OSError("close")))
    with (
        pytest.raises(LookupError, match="the block") as caught,
        cl.FsStateChangelogStorage(ScriptedStore(), scheduler=scheduler),
    ):
        raise LookupError("the block")
    assert ["closing also failed: OSError: close"] == caught.value.__notes__


Run = Callable[[], object]


def test_a_chain_of_persists_runs_on_the_owners_thread():
    """Flink's example: each continuation appends, and persists what it appended."""
    handles: list[cl.ChangelogStateHandle] = []
    threads: list[threading.Thread] = []
    with (
        cl.TaskMailbox() as mailbox,
        cl.FsStateChangelogStorage("memory://chain") as held_storage,
        held_storage.create_writer("op", sl.KeyGroupRange(0, 127), mailbox) as writer,
    ):

        def continued(future: Future[Any]) -> None:
            threads.append(threading.current_thread())
            handles.append(handle_of(future.result()))
            if len(handles) < 50:
                start = writer.next_sequence_number()
                writer.append(len(handles), b"continued")
                writer.persist(start, len(handles)).add_done_callback(continued)

        writer.append(0, b"first")
        writer.persist(0, 1).add_done_callback(continued)
        assert mailbox.run(lambda: len(handles) == 50, timeout_s=60)
        assert {threading.current_thread()} == set(threads)
        changes = [list(held_storage.read(handle)) for handle in handles]
        assert [[(0, b"first")], *([(group, b"continued")] for group in range(1, 50))] == changes


@pytest.fixture
def scheduler() -> HeldScheduler:
    """Return a scheduler in which a persist ends when the test says so."""
    return HeldScheduler()


@pytest.fixture
def held_storage(scheduler: HeldScheduler) -> Iterator[cl.FsStateChangelogStorage]:
    with cl.FsStateChangelogStorage(ScriptedStore(), scheduler=scheduler) as opened:
        yield opened


def test_the_mailbox_is_a_keyword_too_and_takes_any_executor(scheduler, held_storage):
    class Queue:
        def __init__(self) -> None:
            self.commands: list[Run] = []

        def execute(self, command: Run, description: str = "") -> None:
            self.commands.append(command)

    queue, ended = Queue(), []
    writer = held_storage.create_writer("op", ALL, mailbox=queue)
    writer.append(1, b"one")
    writer.persist(0).add_done_callback(ended.append)
    (task,) = scheduler.tasks
    task.fail(OSError("no"))
    assert ([], 1) == (ended, len(queue.commands))
    queue.commands[0]()
    assert isinstance(ended[0].exception(), cl.UploadFailedError)
    with pytest.raises(sl.UsageError, match=r"must be a MailboxExecutor.* does not have exec"):
        held_storage.create_writer("op", ALL, print)


def test_an_error_of_a_callback_reaches_the_owner(scheduler, held_storage):
    def fail(_: object) -> None:
        raise RuntimeError("the state of the task is wrong")

    with cl.TaskMailbox() as mailbox:
        writer = held_storage.create_writer("op", ALL, mailbox)
        writer.append(1, b"one")
        writer.persist(0).add_done_callback(fail)
        (task,) = scheduler.tasks
        task.fail(OSError("no"))
        with pytest.raises(RuntimeError, match="state of the task") as raised:
            mailbox.run(lambda: False, timeout_s=60)
        assert "a callback of a persist" in raised.value.__notes__[0]


def test_a_callback_that_a_closed_mailbox_refuses_is_called_once(scheduler, held_storage):
    called = threading.Event()
    calls: list[object] = []
    mailbox = cl.TaskMailbox()
    writer = held_storage.create_writer("op", ALL, mailbox)
    writer.append(1, b"one")
    future = writer.persist(0)
    future.add_done_callback(lambda future: (calls.append(future), called.set()))
    mailbox.close()
    (task,) = scheduler.tasks
    task.fail(OSError("no"))
    assert called.wait(60)
    held_storage.close()
    assert [future] == calls


def test_a_callback_added_after_the_end_runs_at_once():
    with cl.TaskMailbox() as mailbox, cl.FsStateChangelogStorage(ScriptedStore()) as held_storage:
        writer = held_storage.create_writer("op", ALL, mailbox)
        writer.append(1, b"one")
        future, called = writer.persist(0), []
        future.result(60)
        future.add_done_callback(called.append)
        assert [future] == called
        assert 0 == mailbox.drain()
