"""
The usage examples of Flink's four pages, translated name by name, run as they are written there.

`docs/reference/flink-map.md` names each statement of the pages that is otherwise here, and why.
"""

import datetime as dt
import re
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.house.sources import ROOT

import statelog as sl
from statelog import changelog as cl
from statelog.store import ObjectStore

ALL = sl.KeyGroupRange.of(0, 127)
FLINK = "state.changelog.dstl.dfs."


# --- upload scheduling ----------------------------------------------------------------------------


def test_a_direct_scheduler_of_the_interface_uploads_a_task(tmp_path: Path) -> None:
    uploader = cl.StateChangeFsUploader(tmp_path)
    with uploader, cl.StateChangeUploadScheduler.direct_scheduler(uploader) as scheduler:
        assert scheduler.availability.is_available
        results: list[cl.UploadResult] = []
        changes = [cl.StateChange.of_data_change(5, b"one"), cl.StateChange.of_metadata_change(b"")]
        change_set = cl.StateChangeSet(1, cl.SequenceNumber.of(0), changes)
        task = cl.UploadTask([change_set], results.extend, lambda numbers, error: None)
        scheduler.upload(task)
        assert task.finished and task.size_bytes == 3 and task.change_sets == (change_set,)
        (result,) = results
        assert (0, 3) == (result.entry.offset, result.size_bytes)
    assert ["dstl"] == [each.name for each in tmp_path.iterdir()]


def test_a_scheduler_of_the_interface_is_made_from_a_configuration(tmp_path: Path) -> None:
    config = cl.ChangelogOptions.from_mapping(
        {
            FLINK + "base-path": str(tmp_path / "log"),
            FLINK + "upload.num-threads": "4",
            FLINK + "upload.buffer-size": "2 mb",
            FLINK + "upload.max-in-flight": "200 mb",
            FLINK + "upload.max-attempts": "5",
            FLINK + "upload.timeout": "30 s",
        }
    )
    assert (4, 200 << 20, 5, dt.timedelta(seconds=30)) == (
        config.upload_num_threads,
        config.upload_max_in_flight_bytes,
        config.upload_max_attempts,
        config.upload_timeout,
    )
    metrics, copies = sl.Metrics(), cl.LocalChangelogRegistry()
    ended = threading.Semaphore(0)
    with (
        cl.TaskChangelogRegistry(tmp_path / "log", copies=copies) as registry,
        copies,
        cl.StateChangeUploadScheduler.from_config(
            config,
            job_id="job",
            metrics=metrics,
            registry=registry,
            local_recovery=cl.LocalRecoveryConfig((str(tmp_path / "local"),)),
        ) as scheduler,
    ):
        assert isinstance(scheduler, cl.BatchingStateChangeUploadScheduler)
        for sqn in range(3):
            change_set = cl.StateChangeSet(0, sqn, [(sqn, b"change")])
            scheduler.upload(
                cl.UploadTask([change_set], lambda _: ended.release(), lambda *_: None)
            )
        for _ in range(3):
            assert ended.acquire(timeout=60)
        assert 1 <= metrics.snapshot()["number_of_upload_requests"] <= 3


class MyUploader:
    """The custom uploader of the page, without the calls that only the scheduler may make."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.files = 0

    def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
        offsets: dict[cl.UploadTask, dict[cl.StateChangeSet, tuple[int, int]]] = {}
        content = b"\x00"
        for task in tasks:
            for change_set in task.change_sets:
                offset = len(content) - 1
                offsets.setdefault(task, {})[change_set] = (offset, offset)
                content += encoded(change_set)
        self.files += 1
        path = f"mine/{self.files}"
        self.store.put(path, content)
        return cl.UploadTasksResult(offsets, cl.FileStateHandle(path, len(content) - 1))

    def discard(self, result: cl.UploadTasksResult) -> None:
        result.discard(self.store)

    def close(self) -> None:
        pass


def encoded(change_set: cl.StateChangeSet) -> bytes:
    """Return the bytes of one set, as Flink writes them."""
    from statelog.format.change_set_encoder import encode_change_set

    return b"".join(bytes(each) for each in encode_change_set(change_set).buffers)


def test_a_custom_uploader_makes_its_result_by_the_class_call() -> None:
    store = sl.open_store("memory://custom")
    scheduler = cl.StateChangeUploadScheduler.direct_scheduler(MyUploader(store))
    with cl.FsStateChangelogStorage(store, scheduler=scheduler) as storage:
        writer = storage.create_writer("op", ALL)
        handles = []
        for number in range(3):
            writer.append(number, b"change")
            handles.append(writer.persist(number).result(60).job_manager_owned)
        assert [[(each, b"change")] for each in range(3)] == [
            list(storage.read(handle)) for handle in handles if handle is not None
        ]


def test_the_result_of_several_tasks_is_made_as_in_flink() -> None:
    sets = [cl.StateChangeSet(0, sqn, [(sqn, b"abc")]) for sqn in range(3)]
    ends: list[int] = []
    tasks = [
        cl.UploadTask(sets[:1], lambda results: ends.append(len(results)), print),
        cl.UploadTask(sets[1:], lambda results: ends.append(len(results)), print),
    ]
    handle, local = cl.FileStateHandle("dstl/a", 30), cl.FileStateHandle("/local/a", 30)
    offsets: Any = {tasks[0]: {sets[0]: (0, 0)}, tasks[1]: {sets[1]: (10, 10), sets[2]: 20}}
    result = cl.UploadTasksResult(offsets, handle, local)
    assert ((handle,), 30) == (result.handles, result.state_size)
    entries = [each for task in result.tasks for each in task.results]
    assert [(handle, 0), (handle, 10), (handle, 20)] == [
        (each.entry.handle, each.entry.offset) for each in entries
    ]
    assert [local] * 3 == [each.local.handle for each in entries if each.local is not None]
    result.complete()
    assert [1, 2] == ends
    for wrong, text in (
        ({tasks[0]: {sets[0]: (0, 7)}}, "place of a set must be one offset, or twice the same"),
        ({tasks[0]: {}}, "has no place"),
        ([tasks[0]], "tasks_offsets must be a mapping of tasks"),
    ):
        with pytest.raises(sl.UsageError, match=text):
            cl.UploadTasksResult(wrong, handle)  # type: ignore[arg-type]
    with pytest.raises(sl.UsageError, match="followed by a handle"):
        cl.UploadTasksResult(offsets)


def test_an_upload_waits_for_the_availability() -> None:
    uploader = cl.StateChangeFsUploader("memory://availability")
    with cl.BatchingStateChangeUploadScheduler(
        uploader, batch_threshold_bytes=10, max_in_flight_bytes=10, upload_threads=1
    ) as scheduler:
        ended = threading.Event()
        scheduler.availability.future.add_done_callback(lambda _: ended.set())
        assert scheduler.availability.wait(dt.timedelta(seconds=60)) and ended.wait(60)


@pytest.mark.parametrize("delay", [0.01, dt.timedelta(milliseconds=10)])
def test_a_duration_is_seconds_or_a_timedelta(delay: Any) -> None:
    assert cl.RetryPolicy.fixed(3, delay, delay) == cl.RetryPolicy.fixed(3, 0.01, 0.01)
    uploader = cl.StateChangeFsUploader("memory://durations")
    with cl.BatchingStateChangeUploadScheduler(
        uploader, batch_delay_s=delay, backpressure_timeout_s=delay
    ) as scheduler:
        assert scheduler.availability.wait(delay)


# --- writers --------------------------------------------------------------------------------------


def test_the_writer_of_the_page_with_its_mailbox() -> None:
    sizes: list[int] = []
    with cl.TaskMailbox() as mailbox, cl.FsStateChangelogStorage("memory://page") as storage:
        writer = storage.create_writer("operator-1", sl.KeyGroupRange.of(0, 127), mailbox)
        writer.append(5, b"change1")
        writer.append(10, b"change2")
        writer.append_meta(b"metadata")
        sequence_number = writer.next_sequence_number()
        future = writer.persist(writer.initial_sequence_number(), checkpoint_id=1)
        future.add_done_callback(
            lambda done: sizes.append(len(done.result().job_manager_owned.handles_and_offsets))
        )
        assert mailbox.run(lambda: bool(sizes), timeout_s=60)
        writer.confirm(writer.initial_sequence_number(), sequence_number, 1)
        writer.close()
    assert [1] == sizes


def test_the_chained_persist_of_the_page_needs_no_mailbox() -> None:
    """The continuation appends and persists again, on whatever thread it runs."""
    handles: list[cl.ChangelogStateHandle | None] = []
    finished = threading.Event()
    with cl.FsStateChangelogStorage("memory://chained") as storage:
        writer = storage.create_writer("operator-1", ALL)

        def again(future: Any) -> None:
            handles.append(future.result().job_manager_owned)
            number = writer.next_sequence_number()
            writer.append(7, b"second")
            writer.persist(number, 2).add_done_callback(last)

        def last(future: Any) -> None:
            handles.append(future.result().job_manager_owned)
            finished.set()

        writer.append(5, b"first")
        writer.persist(0, 1).add_done_callback(again)
        assert finished.wait(60)
        changes = [list(storage.read(handle)) for handle in handles if handle is not None]
    assert [[(5, b"first")], [(7, b"second")]] == changes


def test_a_key_group_out_of_range_is_refused() -> None:
    with cl.FsStateChangelogStorage("memory://range") as storage:
        writer = storage.create_writer("operator-1", sl.KeyGroupRange.of(0, 63))
        for key_group in range(64):
            writer.append(key_group, b"change")
        with pytest.raises(ValueError, match=r"key group 100 is outside \[0, 63\]"):
            writer.append(100, b"change")
        with pytest.raises(ValueError, match=r"key_group must be a whole number in \[0, 63\]"):
            writer.append("1", b"")  # type: ignore[arg-type]


# --- checkpoint streams ---------------------------------------------------------------------------


def test_the_factory_takes_flinks_arguments_in_flinks_order(tmp_path: Path) -> None:
    (tmp_path / "chk-1").mkdir()
    factory = cl.FsCheckpointStreamFactory(tmp_path, "chk-1", "shared", 1024, 4096)
    assert cl.FsCheckpointStreamFactory.MAX_FILE_STATE_THRESHOLD == cl.MAX_FILE_STATE_THRESHOLD
    assert "File Stream Factory @ chk-1" == str(factory)
    for size, kind in ((1024, cl.ByteStreamStateHandle), (1025, cl.FileStateHandle)):
        with factory.create_checkpoint_state_output_stream(
            cl.CheckpointedStateScope.EXCLUSIVE
        ) as stream:
            for position in range(size):
                assert position == stream.get_pos()
                stream.write(b"x")
            handle = stream.close_and_get_handle()
        assert isinstance(handle, kind) and handle.size_bytes == size


def test_many_small_writes_take_little_more_memory_than_their_bytes() -> None:
    store = sl.open_store("memory://small-writes")
    factory = cl.FsCheckpointStreamFactory(store, "chk-1", "shared", 0, 4096)
    number, piece = 100_000, b"0123456789"
    with factory.create_checkpoint_state_output_stream(cl.CheckpointedStateScope.SHARED) as stream:
        tracemalloc.start()
        for _ in range(number):
            stream.write(piece)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(stream._pieces) <= number * len(piece) // 4000
        handle = stream.close_and_get_handle()
    assert isinstance(handle, cl.FileStateHandle)
    assert bytes(store.get(handle.path)) == piece * number
    assert held < 1.2 * number * len(piece)


# --- the rest of the pages ------------------------------------------------------------------------


def test_every_statement_that_differs_has_its_reason_in_the_map() -> None:
    page = (ROOT / "docs" / "reference" / "flink-map.md").read_text(encoding="utf-8")
    section = page.split("## Statement by statement\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
    assert 46 == len(rows)
    assert [] == [row for row in rows if not all(cell.strip() for cell in row)]
    assert {"as there", "otherwise"} == {here for _, here, _ in rows}
