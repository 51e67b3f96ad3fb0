"""Arguments are checked where they enter; the message says what is expected and what was given."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.changelogs import ALL, ScriptedStore

import statelog as sl
from statelog import changelog as cl
from statelog.checkpoint import CheckpointedStateScope, FsCheckpointStreamFactory
from statelog.errors import InvalidOptionsError
from statelog.model import FileStateHandle
from statelog.options import (
    CheckpointOptions,
    LocalRecoveryOptions,
    Options,
    SnapshotPolicy,
    StreamOptions,
    load_options,
)
from statelog.store import PATHS, LocationPaths, open_store

NAN = float("nan")


class Quiet:
    """An uploader that is never asked."""

    def upload(self, tasks: Any) -> Any:
        raise AssertionError("not asked")

    def discard(self, result: Any) -> None:
        raise AssertionError("not asked")

    def close(self) -> None:
        pass


def batching(**settings: Any) -> cl.BatchingStateChangeUploadScheduler:
    from statelog.runtime.runtime import system_runtime

    return cl.BatchingStateChangeUploadScheduler(Quiet(), runtime=system_runtime(), **settings)


OPTIONS: list[tuple[Callable[[], object], str]] = [
    (lambda: cl.ChangelogOptions(compression_enabled="no"), "compression_enabled .*True or False"),
    (lambda: cl.ChangelogOptions(batch_persist_delay=5), "batch_persist_delay .*timedelta"),
    (lambda: cl.ChangelogOptions(upload_max_attempts=2.5), "upload_max_attempts .*whole .*2.5"),
    (lambda: cl.ChangelogOptions(upload_max_attempts=True), "upload_max_attempts .*True .bool"),
    (lambda: cl.ChangelogOptions(upload_retry_policy=None), "upload_retry_policy .*text"),
    (lambda: CheckpointOptions(retained="3"), "retained .*whole number"),
    (lambda: StreamOptions(data_inline_threshold_bytes=1.5), "data_inline_threshold_bytes .*whole"),
    (lambda: SnapshotPolicy(log_to_snapshot_ratio=NAN), "log_to_snapshot_ratio .*finite"),
    (lambda: LocalRecoveryOptions(recovery="yes", directories=("a",)), "recovery .*True or False"),
    (lambda: LocalRecoveryOptions(directories="abc"), "directories .*sequence of paths"),
    (lambda: Options(changelog={"upload_max_attempts": 2}), "changelog .*ChangelogOptions"),
]

CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: cl.RetryPolicy.exponential(delay_max_s=float("inf")), "delay.*finite"),
    (lambda: batching(batch_delay_s="10 ms"), "batch_delay_s .*seconds.* or a datetime.timedelta"),
    (lambda: batching(batch_delay_s=-1), "batch_delay_s .*at least 0"),
    (lambda: batching(upload_threads=0), "upload_threads .*at least 1"),
    (lambda: batching(max_in_flight_bytes=0, batch_threshold_bytes=0), "max_in_flight_bytes"),
    (lambda: batching(fixed_delay="no"), "fixed_delay .*True or False"),
    (lambda: batching(backpressure_timeout_s=NAN), "backpressure_timeout_s .*finite"),
    (lambda: batching(policy="fixed"), "policy .*RetryPolicy"),
    (lambda: cl.TaskMailbox().run(print, "1 s"), "timeout_s must be a finite number of seconds"),
    (lambda: cl.TaskMailbox().run(print, -1), "timeout_s must be .* at least 0"),
    (lambda: cl.TaskMailbox().run(5), "until must be a function without arguments, or a Future"),
    (lambda: cl.SequenceNumber("1"), "sequence number .*whole number"),
    (lambda: cl.SequenceNumber(-1), "sequence number .*outside|from 0"),
    (lambda: cl.LocalRecoveryConfig(("a",), backup="no"), "backup .*True or False"),
    (lambda: open_store("a", storage_options={"fsync": "no"}), "fsync .*true or false"),
    (lambda: open_store("a", storage_options=["x"]), "options .*mapping"),
    (lambda: LocationPaths("../a"), "root"),
    (lambda: PATHS.checkpoint(1.5), "checkpoint id .*whole number"),
]


@pytest.mark.parametrize(("call", "said"), OPTIONS)
def test_a_wrong_option_is_refused_with_its_type(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InvalidOptionsError, match=said):
        call()


@pytest.mark.parametrize(("call", "said"), CALLS)
def test_a_wrong_argument_is_refused_with_its_type(call: Callable[[], object], said: str) -> None:
    with pytest.raises(sl.UsageError, match=said):
        call()


@pytest.mark.parametrize(
    "job_id", ["..", ".", "a/b", "/a", "a\\b", "a\nb", "a\x00b", "../a", 5, b"job"]
)
def test_a_job_id_that_is_no_single_folder_is_refused(job_id: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionsError, match="job_id must be"):
        cl.FsStateChangelogStorage(tmp_path / "inner", job_id=job_id)


def test_numpy_numbers_and_paths_are_accepted(tmp_path: Path) -> None:
    options = cl.ChangelogOptions(upload_max_attempts=np.int64(2), base_path=tmp_path)
    attempts = options.upload_max_attempts
    assert (2, int, str(tmp_path)) == (attempts, type(attempts), options.base_path)
    assert ("a", "b") == LocalRecoveryOptions(directories=["a", "b"]).directories
    assert cl.SequenceNumber(np.int64(3)) == cl.SequenceNumber(3)


def test_create_writer_says_what_a_range_is() -> None:
    with cl.FsStateChangelogStorage(ScriptedStore()) as storage:
        with pytest.raises(sl.UsageError, match="key_group_range must be a KeyGroupRange"):
            storage.create_writer("op", (0, 127))
        with pytest.raises(sl.UsageError, match="operator_id must be text"):
            storage.create_writer(5, ALL)


def test_a_stream_of_no_scope_is_refused_instead_of_shared() -> None:
    factory = FsCheckpointStreamFactory(
        ScriptedStore(), exclusive_directory="chk-1", shared_directory="shared"
    )
    with pytest.raises(sl.UsageError, match="scope must be a CheckpointedStateScope"):
        factory.create_checkpoint_state_output_stream("exclusive")
    for wrong in ({"threshold_bytes": 1.5}, {"write_buffer_bytes": "4 kb"}):
        with pytest.raises(sl.UsageError, match="whole number"):
            FsCheckpointStreamFactory(
                ScriptedStore(), exclusive_directory="a", shared_directory="b", **wrong
            )
    assert CheckpointedStateScope("shared") is CheckpointedStateScope.SHARED


def test_registries_refuse_a_wrong_count() -> None:
    with cl.FsStateChangelogStorage(ScriptedStore()) as storage:
        for wrong in (0, -1, 1.5, "2", None):
            with pytest.raises(sl.UsageError, match="num_sets"):
                storage.registry.start_tracking(FileStateHandle("a", 1), wrong)
        assert 0 == len(storage.registry)


def test_a_long_duration_is_no_overflow(tmp_path: Path) -> None:
    names = (
        "upload_timeout",
        "backpressure_timeout",
        "batch_persist_delay",
        "upload_next_attempt_delay",
    )
    options = cl.ChangelogOptions(**dict.fromkeys(names, dt.timedelta.max))
    with cl.FsStateChangelogStorage(tmp_path, options=options) as storage:
        writer = storage.create_writer("op", ALL)
        writer.append(1, b"value")
        assert writer.persist(0).result(60).job_manager_owned is not None


WRONG: list[Any] = [None, "x", 1.5, -1, NAN, True, b"b", object(), [], {}]


def _call(make: Callable[..., Any], name: str, base: dict[str, Any]) -> Callable[[Any], object]:
    return lambda value: make(**{**base, name: value})


def _sweep() -> dict[str, tuple[Callable[[Any], object], tuple[Any, ...]]]:
    """Name the calls, and those of the wrong values that each of them takes."""
    store = ScriptedStore()
    none, text, default = (), ("x",), (None,)
    handle = {
        "key_group_range": ALL, "handles_and_offsets": (), "size_bytes": 0,
        "incremental_size_bytes": 0, "state_handle_id": "id",
    }  # fmt: skip
    task = {"change_sets": [], "on_success": print, "on_failure": print}
    streams = {"store": store, "exclusive_directory": "a", "shared_directory": "b"}
    cache = {"store": store, "directories": ["cache"]}
    changes = {"log_id": 0, "sqn": 0, "changes": []}
    classes: list[tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]] = [
        (cl.HandleAndOffset, {"handle": FileStateHandle("a", 1), "offset": 0},
         {"handle": none, "offset": none, "size_bytes": default, "crc32c": default}),
        (cl.FileStateHandle, {"path": "a", "size_bytes": 1},
         {"path": text, "size_bytes": (-1,), "crc32c": default}),
        (cl.ByteStreamStateHandle, {"name": "a", "data": b""}, {"name": text, "data": (b"b",)}),
        (cl.ChangelogStateHandle, handle,
         {"key_group_range": none, "handles_and_offsets": none, "checkpoint_id": none,
          "size_bytes": (-1,), "incremental_size_bytes": (-1,), "state_handle_id": text}),
        (cl.UploadTask, task, {"change_sets": ([], {}), "on_success": none, "on_failure": none}),
        (cl.Entropy, {"marker": "m"}, {"marker": text, "length": none}),
        (cl.StateChangeFsUploader, {"store": store},
         {"store": text, "job_id": text, "compress": (True,), "paths": default}),
        (cl.InlineStateChangeUploader, {"threshold_bytes": 1, "delegate": Quiet()},
         {"threshold_bytes": none, "delegate": none}),
        (cl.DirectStateChangeUploadScheduler, {}, {"uploader": none}),
        (cl.BatchingStateChangeUploadScheduler, {"uploader": Quiet()},
         {"uploader": none, "metrics": default}),
        (cl.TaskChangelogRegistry, {"store": store},
         {"store": text, "copies": default, "discard_threads": none}),
        (cl.LocalBackup, {"folder": "copies"},
         {"folder": text, "patience_s": (1.5,), "num_threads": none}),
        (cl.DownloadCache, cache,
         {"store": text, "directories": none, "max_bytes": none, "idle_timeout": none}),
        (cl.FsStateChangelogStorage, {"base_path": store},
         {"base_path": text, "options": default, "job_id": ("x", None), "metrics": default,
          "scheduler": default, "registry": default, "local_recovery": default,
          "cache_directories": ([],)}),
        (FsCheckpointStreamFactory, streams,
         {"store": text, "exclusive_directory": text, "shared_directory": text,
          "task_owned_directory": ("x", None), "entropy": default}),
        (cl.StateChangeSet.of, changes, {"log_id": none, "sqn": none, "changes": ([], {})}),
        (cl.StateChangeSet, {"log_id": 0, "sqn": 0, "batches": []},
         {"log_id": none, "sqn": none, "batches": ([], {})}),
        (sl.KeyGroupRange, {"start": 0, "end": 5}, {"start": none, "end": (-1,)}),
        (cl.SequenceNumberRange, {"from_sqn": 0, "to_sqn": 5}, {"from_sqn": none, "to_sqn": none}),
        (cl.RetryPolicy.fixed, {},
         {"max_attempts": none, "timeout_s": (None, 1.5, -1), "delay_after_failure_s": (1.5,)}),
    ]  # fmt: skip
    calls: dict[str, tuple[Callable[[Any], object], tuple[Any, ...]]] = {}
    for make, base, arguments in classes:
        for name, fine in arguments.items():
            calls[f"{make.__qualname__}.{name}"] = (_call(make, name, base), fine)
    storage, registry = cl.FsStateChangelogStorage(store), cl.TaskChangelogRegistry(store)
    writer, copies = storage.create_writer("op", ALL), cl.LocalChangelogRegistry()
    empty = cl.ChangelogStateHandle(**handle)
    copy, one = FileStateHandle("/a", 1), pa.array([b"x"])
    calls |= {
        "append": (lambda value: writer.append(1, value), (b"b",)),
        "append.key_group": (lambda value: writer.append(value, b"b"), (True,)),
        "persist": (writer.persist, ()),
        "persist.checkpoint_id": (lambda value: writer.persist(0, value), ()),
        "confirm": (lambda value: writer.confirm(0, 0, value), ()),
        "reset": (lambda value: writer.reset(value, 0, 0), ()),
        "truncate": (writer.truncate, ()),
        "create_writer.mailbox": (lambda value: storage.create_writer("a", ALL, value), (None,)),
        "mailbox.execute": (cl.TaskMailbox().execute, ()),
        "mailbox.run": (cl.TaskMailbox().run, ()),
        "append_meta": (writer.append_meta, (b"b",)),
        "append_batch.values": (lambda value: writer.append_batch([1], value), ()),
        "append_batch.key_groups": (lambda value: writer.append_batch(value, one), ()),
        "read": (storage.read, ()),
        "read_batches": (lambda value: storage.read_batches(empty, value), (None,)),
        "registry.release": (registry.release, ()),
        "registry.close": (registry.close, (1.5,)),
        "copies.close": (cl.LocalChangelogRegistry().close, (1.5,)),
        "registry.start_tracking": (lambda value: registry.start_tracking(value, 1), ()),
        "copies.register": (lambda value: copies.register(copy, value), ()),
        "copies.discard": (copies.discard_up_to_checkpoint, ()),
        "availability.wait": (storage.scheduler.availability.wait, (None, 1.5)),
        "from_mapping": (cl.ChangelogOptions.from_mapping, ({},)),
        "load_options": (load_options, (None, {})),
        "operator": (lambda value: cl.key_group_range_for_operator(value, 1, 0), ()),
        "split": (lambda value: cl.split_key_groups(128, value), ()),
        "range": (lambda value: sl.KeyGroupRange.of(value, 5), ()),
        "discard": (lambda value: cl.discard_local_copies(value, "job"), ()),
    }
    return calls


SWEEP = _sweep()


@pytest.mark.parametrize("name", SWEEP)
def test_no_wrong_value_enters_a_public_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, fine = SWEEP[name]
    entered, taken = [], []
    for value in WRONG:
        try:
            call(value)
            taken.append(value)
            if not any(value is each or value == each for each in fine):
                entered.append(repr(value))
        except sl.UsageError:
            pass
        except Exception as error:
            entered.append(f"{value!r}: {type(error).__name__}: {error}")
    assert [] == entered
    assert len(fine) == len(taken)  # what is fine is taken
