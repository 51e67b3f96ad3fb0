"""What a writer takes and refuses, and what ends when a part of a storage fails to close."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from tests.support.changelogs import ALL, ScriptedStore, appended, handle_of, values_of

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
        first = handle_of(writer.persist(0, 1).result(60))
        writer.append(1, b"two")
        second = handle_of(writer.persist(np.int64(1), 2).result(60))
        assert [b"one"] == values_of(storage.read(first))
        assert [b"two"] == values_of(storage.read(second))
        writer.confirm(0, 1, checkpoint_id=1)
        writer.reset(1, 2, checkpoint_id=2)
        writer.truncate(1)
        with pytest.raises(cl.ChangesTruncatedError):
            writer.persist(0)
        assert 2 == int(writer.next_sequence_number())
        writer.truncate_and_close(1)
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
