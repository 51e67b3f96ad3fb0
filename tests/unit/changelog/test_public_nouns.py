"""The nouns of Flink's pages, built from public names and without a runtime, ids or paths."""

import io
import threading
from typing import Any

import pytest
from tests.support.changelogs import ALL, ScriptedStore, appended, handle_of, values_of, wait_until

import statelog as sl
from statelog import changelog as cl
from statelog.errors import InvalidOptionsError
from statelog.options import load_options
from statelog.runtime.runtime import system_runtime


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("statelog-")}


def wait_for_no_new_threads(before: set[str]) -> None:
    wait_until(lambda: not threads() - before, "threads stay")


def a_set(sqn: int = 0) -> cl.StateChangeSet:
    return cl.StateChangeSet.of(0, sqn, [(1, b"one"), (-1, b"meta"), (2, b"")])


def test_parts_made_without_a_runtime_end_their_threads_with_close(tmp_path):
    before = threads()
    store = sl.open_store(tmp_path)
    uploader = cl.StateChangeFsUploader(store, job_id="job", backup=cl.LocalBackup(str(tmp_path)))
    scheduler = cl.BatchingStateChangeUploadScheduler(
        cl.InlineStateChangeUploader(0, uploader), policy=cl.RetryPolicy.fixed(2, 30.0)
    )
    ended = threading.Event()
    scheduler.upload(cl.UploadTask([a_set()], lambda _: ended.set(), lambda *_: None))
    assert ended.wait(60)
    registry = cl.TaskChangelogRegistry(store, discard_threads=2)
    registry.start_tracking(cl.FileStateHandle("none", 0), 1)
    registry.release(cl.FileStateHandle("none", 0))
    copies = cl.LocalChangelogRegistry()
    copies.register(cl.FileStateHandle(str(tmp_path / "gone"), 0), 1)
    copies.discard_up_to_checkpoint(2)
    cache = cl.DownloadCache(store, [tmp_path / "cache"])
    for part in (scheduler, registry, copies, cache, uploader._backup):
        assert part is not None
        part.close()
        part.close()
    wait_for_no_new_threads(before)


def test_a_runtime_of_the_caller_is_left_open():
    runtime = system_runtime()
    uploader = cl.StateChangeFsUploader(ScriptedStore())
    parts: list[Any] = [
        cl.BatchingStateChangeUploadScheduler(uploader, runtime=runtime),
        cl.BatchingStateChangeUploadScheduler.from_config(
            base_path=ScriptedStore(), runtime=runtime
        ),
        cl.TaskChangelogRegistry(ScriptedStore(), runtime=runtime),
        cl.LocalChangelogRegistry(runtime=runtime),
    ]
    for part in parts:
        part.close()
    done = threading.Event()
    runtime.upload_pool.submit(lambda: None, lambda _, error: done.set() if not error else None)
    assert done.wait(60)
    runtime.close(1.0)


@pytest.mark.parametrize("compress", [False, True])
def test_from_config_does_what_the_options_say(compress, tmp_path):
    before = threads()
    options = cl.ChangelogOptions(compression_enabled=compress, base_path=str(tmp_path / "log"))
    config = cl.LocalRecoveryConfig((str(tmp_path / "local"),))
    store = sl.open_store(tmp_path / "log")
    registry = cl.TaskChangelogRegistry(store, copies=cl.LocalChangelogRegistry())
    scheduler = cl.BatchingStateChangeUploadScheduler.from_config(
        options, job_id="job", registry=registry, local_recovery=config
    )
    with cl.FsStateChangelogStorage(
        store, scheduler=scheduler, registry=registry, job_id="job", local_recovery=config
    ) as storage:
        writer = appended(storage, b"one")
        result = writer.persist(0, 1).result(60)
        handle = handle_of(result)
        path = handle.handles_and_offsets[0].handle.path
        assert path.startswith("job/dstl/")
        assert compress == (store.get(path)[0] == 1)
        assert [b"one"] == values_of(storage.read(handle))
        assert result.task_local is not None
        assert 1 == len(list((tmp_path / "local").rglob("taskowned/*")))
        writer.truncate(1)
    assert [] == list(store.list("job"))
    wait_for_no_new_threads(before)


@pytest.mark.parametrize("wrong", [{"options": {}}, {"job_id": "a/b"}, {"options": None}])
def test_from_config_refuses_what_it_cannot_use(wrong):
    with pytest.raises(InvalidOptionsError):
        cl.BatchingStateChangeUploadScheduler.from_config(**wrong)


def test_a_set_of_changes_keeps_their_order_and_counts_their_bytes():
    change_set = cl.StateChangeSet.of(3, 7, [cl.StateChange(1, b"one"), (2, b""), (-1, b"meta")])
    assert [(1, b"one"), (2, b""), (-1, b"meta")] == list(change_set)
    assert (3, cl.SequenceNumber(7)) == (change_set.log_id, change_set.sqn)
    assert (7, 3) == (change_set.size_bytes, len(change_set))
    empty = cl.StateChangeSet.of(0, 0, [])
    assert ([], 0) == (list(empty), len(empty))
    for wrong in ([b"x"], [(1,)], [(1, "text")], [(-2, b"")], [(1.5, b"")], [(2**31, b"")]):
        with pytest.raises(sl.UsageError):
            cl.StateChangeSet.of(0, 0, wrong)
    assert (-1, b"m") == cl.StateChange.of_metadata_change(b"m")
    for call in (
        lambda: cl.StateChange.of_data_change(-1, b""),
        lambda: cl.StateChange.of_data_change(1, "text"),
        lambda: cl.StateChange.of_metadata_change(None),
    ):
        with pytest.raises(sl.UsageError):
            call()


@pytest.mark.parametrize("compress", [False, True])
def test_the_format_writes_and_reads_a_file(compress):
    file, sets = io.BytesIO(), [a_set(0), cl.StateChangeSet.of(1, 0, []), a_set(1)]
    places = cl.StateChangeFormat(compress=compress).write(file, sets)
    read = [
        sorted(cl.StateChangeFormat().read(file.getvalue(), places[change_set].offset))
        for change_set in sets
    ]
    assert [sorted(change_set) for change_set in sets] == read
    with pytest.raises(sl.UsageError, match="twice"):
        cl.StateChangeFormat().write(io.BytesIO(), [sets[0], sets[0]])
    with pytest.raises(sl.UsageError, match="StateChangeSet"):
        cl.StateChangeFormat().write(io.BytesIO(), [b"x"])


@pytest.mark.parametrize("with_checksums", [True, False])
def test_a_result_made_by_hand_is_read_back(with_checksums):
    store, file = ScriptedStore(), io.BytesIO()
    tasks = [
        cl.UploadTask([a_set(0), a_set(1)], lambda _: None, lambda *_: None),
        cl.UploadTask([cl.StateChangeSet.of(1, 0, [(9, b"nine")])], print, print),
    ]
    sets = [change_set for task in tasks for change_set in task.change_sets]
    written = cl.StateChangeFormat().write(file, sets)
    store.put("file", file.getvalue())
    size = sum(place.size_bytes for place in written.values())
    offsets = {change_set: place.offset for change_set, place in written.items()}
    places = written if with_checksums else offsets
    result = cl.UploadTasksResult.of(tasks, places, cl.FileStateHandle("file", size))
    assert (size, [2, 1]) == (result.state_size, [len(task.results) for task in result.tasks])
    for change_set, entry in zip(sets, [r for t in result.tasks for r in t.results], strict=True):
        handle = cl.ChangelogStateHandle(ALL, (entry.entry,), 0, 0, "id")
        assert sorted(change_set) == sorted(cl.read_changes(store, handle))
        assert (change_set.log_id, change_set.sqn) == (entry.log_id, entry.sqn)
    result.discard(store)
    assert {} == store.objects
    with pytest.raises(sl.UsageError, match="has no offset"):
        cl.UploadTasksResult.of(tasks, {}, cl.FileStateHandle("file", size))


def test_a_result_of_one_set_is_checked():
    handle, copy = cl.FileStateHandle("file", 9), cl.FileStateHandle("/copy", 9)
    result = cl.UploadResult.of(handle, a_set(4), 5, local_handle=copy)
    assert result.local is not None
    assert (4, 7, 5) == (result.sqn.value, result.size_bytes, result.entry.offset)
    assert (5, copy) == (result.local.offset, result.local.handle)
    for wrong in (("file", a_set(), 0), (handle, "set", 0), (handle, a_set(), -1)):
        with pytest.raises(sl.UsageError):
            cl.UploadResult.of(*wrong)


def test_an_availability_of_a_custom_scheduler_has_a_lock_of_its_own():
    room = [False]
    available = cl.AvailabilityProvider(lambda: room[0])
    assert available.is_available
    available.refresh()
    assert not available.wait(0.01)
    room[0] = True
    available.refresh()
    assert available.wait(0.01)
    with pytest.raises(sl.UsageError, match="has_room must be a function"):
        cl.AvailabilityProvider(5)


def test_a_storage_from_options_reads_the_changelog_and_the_local_recovery(tmp_path):
    settings = {
        "changelog.base-path": str(tmp_path / "log"),
        "changelog.preemptive-persist-threshold": 0,
        "local-recovery.recovery": True,
        "local-recovery.directories": str(tmp_path / "local"),
    }
    options = load_options(settings, environ={})
    with cl.FsStateChangelogStorage.from_options(options, job_id="job") as storage:
        result = appended(storage, b"x" * 100).persist(0, 1).result(60)
        assert result.task_local is not None
        report = cl.ReadReport()
        changes = storage.read(handle_of(result), local=result.task_local, report=report)
        assert [(1, b"x" * 100)] == list(changes)
        assert 1 == report.local_files
    assert cl.LocalRecoveryConfig.of(cl.LocalRecoveryOptions()) is None
    with pytest.raises(InvalidOptionsError, match="load_options"):
        cl.FsStateChangelogStorage.from_options(cl.ChangelogOptions())
