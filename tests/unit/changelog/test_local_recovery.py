"""Local copies: written next to the upload, read before the store, and never in the way of either."""

import datetime as dt
import os
import random
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.changelogs import (
    ALL,
    GatedStore,
    ScriptedStore,
    handle_of,
    values_of,
    wait_until,
)

import statelog as sl
from statelog import changelog as cl
from statelog.changelog.local_registry import LocalFiles
from statelog.changelog.writer import FsStateChangelogWriter
from statelog.errors import InvalidOptionsError, ObjectNotFoundError
from statelog.model import FileStateHandle
from statelog.runtime.pool import ThreadPool
from statelog.runtime.runtime import system_runtime
from statelog.store.paths import LocationPaths

SnapshotOfLog = cl.SnapshotResult[cl.ChangelogStateHandle]


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
def config(tmp_path: Path) -> cl.LocalRecoveryConfig:
    return cl.LocalRecoveryConfig((str(tmp_path / "local"),))


@pytest.fixture
def storage(store, config) -> Iterator[cl.FsStateChangelogStorage]:
    with cl.FsStateChangelogStorage(store, job_id="job", local_recovery=config) as opened:
        yield opened


@pytest.fixture
def writer(storage: cl.FsStateChangelogStorage) -> FsStateChangelogWriter:
    return storage.create_writer("operator", ALL)


def persisted(
    writer: FsStateChangelogWriter, *values: bytes, from_sqn: int = 0, checkpoint_id: int = 1
) -> SnapshotOfLog:
    for value in values:
        writer.append(1, value)
        writer.next_sequence_number()
    return writer.persist(from_sqn, checkpoint_id).result(60)


def local_of(result: SnapshotOfLog) -> cl.ChangelogStateHandle:
    assert result.task_local is not None
    return result.task_local


def path_of(handle: cl.ChangelogStateHandle, index: int = 0) -> Path:
    stream = handle.handles_and_offsets[index].handle
    assert isinstance(stream, FileStateHandle)
    return Path(stream.path)


def test_the_copy_has_the_bytes_and_the_name_of_the_remote_file(storage, store, tmp_path):
    result = persisted(storage.create_writer("operator", ALL), b"one", b"two")
    local, remote = local_of(result), handle_of(result)
    (object_name,) = store.objects
    path = path_of(local)
    assert tmp_path / "local" / "jid_job" / "taskowned" / object_name.rsplit("/", 1)[-1] == path
    assert store.objects[object_name] == path.read_bytes()
    assert [path.name] == os.listdir(path.parent), "no unfinished file stays"
    assert remote.state_handle_id == local.state_handle_id
    assert [entry.offset for entry in remote.handles_and_offsets] == [
        entry.offset for entry in local.handles_and_offsets
    ]
    assert (remote.size_bytes, 0) == (local.size_bytes, local.incremental_size_bytes)
    assert local == cl.ChangelogStateHandle.from_json(local.to_json())


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8] ^= 1
    path.write_bytes(content)


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:15])


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [Path.unlink, damage, tear, replace_by_a_folder])
def test_a_copy_that_is_not_whole_costs_one_request_and_no_restore(writer, storage, harm):
    persisted(writer, b"one")
    result = persisted(writer, b"two", checkpoint_id=2)
    local = local_of(result)
    harm(path_of(local, 0))
    report = cl.ReadReport()
    changes = storage.read(handle_of(result), local=local, report=report)
    assert [b"one", b"two"] == values_of(changes)
    assert (1, 1) == (report.local_files, report.remote_files)
    assert [str(path_of(local, 0))] == [name for name, _ in report.set_aside]


def test_a_copy_of_a_different_handle_or_file_is_not_read(writer, storage):
    result = persisted(writer, b"one")
    other = persisted(writer, b"two", from_sqn=1, checkpoint_id=2)
    for foreign in (local_of(other), replace(local_of(result), handles_and_offsets=())):
        report = cl.ReadReport()
        changes = storage.read(handle_of(result), local=foreign, report=report)
        assert [b"one"] == values_of(changes)
        assert (0, 1, 1) == (report.local_files, report.remote_files, len(report.set_aside))
    path_of(local_of(result)).write_bytes(path_of(local_of(other)).read_bytes())
    assert [b"one"] == values_of(storage.read(handle_of(result), local=local_of(result)))


def test_the_copy_serves_a_rescaled_handle_and_a_lone_set(writer, storage, store):
    result = persisted(writer, b"a" * 5000, b"b" * 10)
    half = sl.KeyGroupRange(0, 63)
    remote = handle_of(result).intersection(half)
    local = local_of(result).intersection(half)
    assert remote is not None and local is not None
    lone = replace(remote, handles_and_offsets=remote.handles_and_offsets[1:])
    lone_local = replace(local, handles_and_offsets=local.handles_and_offsets[1:])
    store.requests.clear()
    (batch,) = storage.read_batches(lone, half, local=lone_local)
    assert (1, 0) == (batch.num_rows, store.requests.total())


def test_backup_and_recovery_are_separate_switches(store, tmp_path):
    def read(storage: cl.FsStateChangelogStorage) -> tuple[int, int]:
        report = cl.ReadReport()
        list(storage.read(handle_of(result), local=local_of(result), report=report))
        return report.local_files, report.remote_files

    writing = cl.LocalRecoveryConfig((str(tmp_path),), backup=True, recovery=False)
    with cl.FsStateChangelogStorage(store, job_id="job", local_recovery=writing) as storage:
        result = persisted(storage.create_writer("operator", ALL), b"one")
        assert (0, 1) == read(storage)
    reading = cl.LocalRecoveryConfig((str(tmp_path),), backup=False, recovery=True)
    with cl.FsStateChangelogStorage(store, job_id="job", local_recovery=reading) as storage:
        assert (1, 0) == read(storage)
        assert persisted(storage.create_writer("operator", ALL), b"two").task_local is None
        assert storage.registry.copies is None


def below_a_file(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write_text("in the way")


def read_only(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.mkdir()
    directory.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid() == 0:  # nothing is read-only for the superuser
        monkeypatch.setattr(os, "makedirs", refuse)


def refuse(path: str, exist_ok: bool) -> None:
    raise PermissionError(13, "permission denied", path)


@pytest.mark.parametrize("fault", [below_a_file, read_only])
def test_h8_a_folder_that_cannot_be_written_means_no_local_copy(
    fault, store, config, tmp_path, monkeypatch
):
    fault(tmp_path / "local", monkeypatch)
    with cl.FsStateChangelogStorage(store, job_id="job", local_recovery=config) as storage:
        writer = storage.create_writer("operator", ALL)
        result = persisted(writer, b"one")
        assert result.task_local is None
        assert [b"one"] == values_of(storage.read(handle_of(result)))
        values = storage.metrics.snapshot()
        assert (0, 1) == (values["local_copies_written"], values["local_copy_errors"])
        assert 0 == values["number_of_upload_failures"]
        assert 1 == len(storage.registry)


class FullDisk:
    """Stands for the module's `open`: the file takes a few bytes, and no more."""

    def __init__(self, at: str) -> None:
        self.at = at

    def __call__(self, path: str, mode: str) -> "FullDisk":
        Path(path).write_bytes(b"half")
        return self

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *_: object) -> None:
        if self.at == "close":
            raise OSError(28, "no space left on device")

    def write(self, piece: bytes) -> None:
        if self.at == "write":
            raise OSError(28, "no space left on device")


@pytest.mark.parametrize("at", ["write", "close"])
def test_h8_a_full_disk_means_no_local_copy_and_no_file(writer, monkeypatch, tmp_path, at):
    monkeypatch.setattr("statelog.changelog.local_registry.open", FullDisk(at), raising=False)
    assert persisted(writer, b"one").task_local is None
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]
    monkeypatch.undo()
    assert persisted(writer, b"two", checkpoint_id=2).task_local is None, "one set has no copy"
    assert persisted(writer, b"three", from_sqn=2, checkpoint_id=3).task_local is not None


def with_backup(
    store: ScriptedStore, folder: Path, pool: ThreadPool, policy: cl.RetryPolicy, patience_s: float
) -> cl.FsStateChangelogStorage:
    runtime = system_runtime()
    copies = cl.LocalChangelogRegistry(runtime=runtime)
    registry = cl.TaskChangelogRegistry(store, runtime=runtime, copies=copies)
    backup = cl.LocalBackup(str(folder), runtime=runtime, pool=pool, patience_s=patience_s)
    uploader = cl.StateChangeFsUploader(
        store, paths=LocationPaths("job"), ids=runtime.ids, registry=registry, backup=backup
    )
    scheduler = cl.BatchingStateChangeUploadScheduler(uploader, runtime=runtime, policy=policy)
    return cl.FsStateChangelogStorage(
        store, job_id="job", scheduler=scheduler, registry=registry, runtime=runtime
    )


def test_h8_a_disk_that_hangs_holds_no_upload_and_leaves_nothing(store, tmp_path):
    pool = ThreadPool(1, "hanging")
    released, answered = threading.Event(), threading.Event()
    pool.submit(lambda: released.wait(60), lambda *_: None)
    with with_backup(store, tmp_path, pool, cl.RetryPolicy.none(), 0.01) as storage:
        result = persisted(storage.create_writer("operator", ALL), b"one")
        assert result.task_local is None
        released.set()
        pool.submit(lambda: None, lambda *_: answered.set())
        assert answered.wait(60)
        assert [] == list(tmp_path.iterdir())
    pool.close(5)


def test_h8_copies_that_cannot_keep_up_are_left_out(tmp_path):
    pool = ThreadPool(1, "hanging")
    released = threading.Event()
    pool.submit(lambda: released.wait(60), lambda *_: None)
    backup = cl.LocalBackup(str(tmp_path), runtime=system_runtime(), pool=pool, patience_s=0)
    copies = [backup.start(f"{index:02}", b"content") for index in range(40)]
    assert [None] * 40 == [copy.take() for copy in copies]
    released.set()
    pool.close(5)
    assert [] == list(tmp_path.iterdir())


def test_h7_a_failed_upload_leaves_no_copy(storage, store):
    store.put_errors = [OSError("broken off")]
    result = persisted(storage.create_writer("operator", ALL), b"one")
    path = path_of(local_of(result))
    wait_until(lambda: [path.name] == os.listdir(path.parent))


def test_h6_a_late_loser_loses_its_copy_too(tmp_path):
    store, pool = GatedStore(), ThreadPool(2, "copies")
    hedging = cl.RetryPolicy.fixed(max_attempts=2, timeout_s=0.1, delay_after_failure_s=0)
    with with_backup(store, tmp_path, pool, hedging, 1.0) as storage:
        result = persisted(storage.create_writer("operator", ALL), b"one")
        copies = storage.registry.copies
        assert copies is not None
        store.gate.set()
        wait_until(lambda: store.requests["delete"] and len(list(tmp_path.iterdir())) == 1)
        assert [path_of(local_of(result)).name] == os.listdir(tmp_path)
        assert (1, 1) == (len(storage.registry), len(copies))
    pool.close(5)


def test_the_configuration_understands_flinks_keys():
    dirs = "execution.checkpointing.local-backup.dirs"
    recovery = "execution.state-recovery.from-local"
    backup = "execution.checkpointing.local-backup.enabled"
    flink_1 = "state.backend.local-recovery"
    read, config = cl.LocalRecoveryConfig.from_mapping, cl.LocalRecoveryConfig
    assert config((), False, False) == read({})
    assert config(("/a", "/b")) == read({recovery: "true", dirs: "/a, /b"})
    assert config(("/a",), backup=True, recovery=False) == read({backup: True, dirs: "/a"})
    assert config(("/a",)) == read({flink_1: "true", dirs: "/a"})
    for wrong in ({recovery: "true"}, {recovery: "perhaps", dirs: "/a"}):
        with pytest.raises(InvalidOptionsError):
            read(wrong)
    with pytest.raises(InvalidOptionsError):
        config("one text")


def test_a_job_always_has_the_same_directory():
    config = cl.LocalRecoveryConfig(("/a", "/b", "/c"))
    # As Flink: JobID.hashCode() is the exclusive-or of the id's four words, text hashes as in Java.
    assert "/b/jid_00000000000000000000000000000001/taskowned" == config.folder_of("0" * 31 + "1")
    assert config.folder_of("f" * 8 + "0" * 24).startswith("/b/"), "the sign bit is dropped"
    assert "/b/jid_hello/taskowned" == config.folder_of("hello")
    assert "/a/jid_a%2Fb/taskowned" == cl.LocalRecoveryConfig(("/a",)).folder_of("a/b")


def test_local_files_are_absolute(tmp_path):
    files = LocalFiles()
    (tmp_path / "file").write_bytes(b"content")
    assert b"nte" == bytes(files.get_range(str(tmp_path / "file"), 2, 3))
    with pytest.raises(sl.StoreError, match="absolute"):
        files.get("file")
    with pytest.raises(ObjectNotFoundError):
        files.get(str(tmp_path / "none"))
    with pytest.raises(sl.UsageError, match="absolute"):
        cl.LocalChangelogRegistry(runtime=system_runtime()).register(FileStateHandle("file", 1), 1)


def test_the_copies_of_a_job_can_be_discarded(writer, storage, config):
    first = persisted(writer, b"one")
    second = persisted(writer, b"two", from_sqn=1, checkpoint_id=2)
    assert 0 == cl.discard_local_copies(config, "another job")
    assert 1 == cl.discard_local_copies(config, "job", keep=[local_of(second)])
    assert [b"one"] == values_of(storage.read(handle_of(first), local=local_of(first)))
    assert 1 == cl.discard_local_copies(config, "job")


def test_a_copy_that_a_truncation_has_dropped_is_not_claimed():
    registry = cl.LocalChangelogRegistry(runtime=system_runtime())
    stored, dropped = FileStateHandle("/nowhere/stored", 1), FileStateHandle("/nowhere/dropped", 1)
    registry.track(stored)
    registry.track(dropped)
    assert registry.claim([stored, dropped, cl.ByteStreamStateHandle("inline", b"")], 1)
    registry.drop(dropped.path)
    assert not registry.claim([stored, dropped], 2)
    registry.discard_up_to_checkpoint(2)
    assert (True, False, 1) == (stored in registry, dropped in registry, len(registry))
    assert registry.claim([stored], 3)
    registry.discard_up_to_checkpoint(3)
    registry.abort(3)  # too late: a restore may begin there
    registry.release(stored.path)
    assert stored in registry
    registry.discard_up_to_checkpoint(4)
    assert 0 == len(registry)
    registry.close()


class WriterHistory:
    """Two writers, checkpoints in flight, confirmations and aborts, and a store that fails."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.store = ScriptedStore()
        self.folder = folder
        self.config = cl.LocalRecoveryConfig((str(folder),))
        options = cl.ChangelogOptions(
            preemptive_persist_threshold_bytes=40,
            upload_next_attempt_delay=dt.timedelta(milliseconds=1),
        )
        self.storage = cl.FsStateChangelogStorage(
            self.store, options=options, job_id="job", local_recovery=self.config
        )
        self.writers = [self.storage.create_writer(name, ALL) for name in ("one", "two")]
        self.appended: list[list[tuple[int, bytes]]] = [[], []]  # (set number, value)
        self.lowest = [0, 0]
        # checkpoint -> for each writer: from, to, result
        self.open: dict[int, list[tuple[int, int, cl.SnapshotResult[cl.ChangelogStateHandle]]]] = {}
        self.confirmed = 0
        self.last_good: list[tuple[int, int, cl.SnapshotResult[cl.ChangelogStateHandle]]] = []
        self.next_id = 1

    def append(self) -> None:
        index = self.rng.randrange(2)
        writer, value = self.writers[index], b"%d" % self.rng.randrange(10**12)
        number = writer.next_sequence_number().value
        writer.append(1, value)
        self.appended[index].append((number, value))
        writer.next_sequence_number()

    def checkpoint(self) -> None:
        number, self.next_id = self.next_id, self.next_id + 1
        if self.rng.random() < 0.3:
            self.store.put_errors = [OSError("passing")]
        parts = []
        for index, writer in enumerate(self.writers):
            upto = writer.next_sequence_number().value
            start = self.rng.randint(self.lowest[index], upto)
            result = writer.persist(start, number).result(60)
            parts.append((start, upto, result))
        self.open[number] = parts

    def confirm(self) -> None:
        if self.open:
            number = self.rng.choice(sorted(self.open))
            self.confirmed, self.last_good = number, self.open[number]
            for writer, (start, upto, _) in zip(self.writers, self.last_good, strict=True):
                writer.confirm(start, upto, number)
            for checkpoint in [checkpoint for checkpoint in self.open if checkpoint <= number]:
                del self.open[checkpoint]

    def abort(self) -> None:
        if self.open:
            number = self.rng.choice(sorted(self.open))
            for writer, (start, upto, _) in zip(self.writers, self.open.pop(number), strict=True):
                writer.reset(start, upto, number)

    def truncate(self) -> None:
        """Up to where the last good checkpoint and every open one begin, as a job would."""
        for index, writer in enumerate(self.writers):
            starts = [parts[index][0] for parts in [*self.open.values(), self.last_good] if parts]
            if starts:
                self.lowest[index] = max(self.lowest[index], min(starts))
                writer.truncate(self.lowest[index])

    def check(self) -> None:
        """Check that each possible restore reads what was appended, from local copies."""
        for parts in [*self.open.values(), self.last_good]:
            for index, (start, upto, result) in enumerate(parts):
                assert result.job_manager_owned is not None
                expected = [v for n, v in self.appended[index] if start <= n < upto]
                report = cl.ReadReport()
                handle, local = result.job_manager_owned, result.task_local
                changes = self.storage.read(handle, local=local, report=report)
                assert expected == values_of(changes)
                assert (0, []) == (report.remote_files, report.set_aside)

    def run(self, steps: int) -> None:
        moves = (
            [self.append] * 4 + [self.checkpoint] * 3 + [self.confirm, self.abort, self.truncate]
        )
        for _ in range(steps):
            self.rng.choice(moves)()
            self.check()
        while self.open:
            self.abort()
        for writer in self.writers:
            writer.persist(self.lowest[self.writers.index(writer)]).result(60)
            writer.truncate(writer.next_sequence_number())
        self.check()
        self.storage.close()

    def files_of_the_last_checkpoint(self) -> set[str]:
        return {
            os.path.basename(entry.handle.path)
            for _, _, result in self.last_good
            if result.task_local is not None
            for entry in result.task_local.handles_and_offsets
            if isinstance(entry.handle, FileStateHandle)
        }


@pytest.mark.parametrize("seed", range(12))
def test_what_a_restore_may_want_is_there_and_nothing_else_stays(seed, tmp_path):
    history = WriterHistory(seed, tmp_path)
    history.run(40)
    folder = Path(history.config.folder_of("job"))
    on_disk = set(os.listdir(folder)) if folder.exists() else set()
    assert history.files_of_the_last_checkpoint() == on_disk
