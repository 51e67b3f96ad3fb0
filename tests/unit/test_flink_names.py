"""Names of Flink that are spelled otherwise: the error says how, and what it says exists."""

import re
import subprocess
import sys
from typing import Any

import pytest

import statelog as sl
from statelog.flink_names import MEMBERS, PUBLIC_NAMES, spelled_here

WRITER_RANGE = sl.KeyGroupRange(0, 127)
HANDLE = sl.FileStateHandle("dstl/a", 1)
SET = sl.StateChangeSet(0, 1, [(1, b"one")])
TASK = sl.UploadTask([SET], print, print)

CAMEL: list[tuple[Any, str, str]] = [
    (sl.SnapshotResult(None), "getJobManagerOwnedSnapshot", "the attribute `job_manager_owned`"),
    (sl.SnapshotResult(None), "get_task_local_snapshot", "the attribute `task_local`"),
    (sl.ChangelogStateHandle(WRITER_RANGE, (), 0, 0, "id"), "getStreamStateHandles", "the attribute `handles_and_offsets`"),
    (sl.ChangelogStateHandle(WRITER_RANGE, (), 0, 0, "id"), "getHandlesAndOffsets", "the attribute `handles_and_offsets`"),
    (sl.ChangelogStateHandle(WRITER_RANGE, (), 0, 0, "id"), "get_stream_state_handle", "the attribute `handles_and_offsets`"),
    (sl.ChangelogStateHandle(WRITER_RANGE, (), 0, 0, "id"), "getIntersection", "the method `intersection()`"),
    (sl.UploadResult.of(HANDLE, SET, 0), "stream_state_handle", "`entry.handle`"),
    (sl.UploadResult.of(HANDLE, SET, 0), "offset", "`entry.offset`"),
    (sl.UploadResult.of(HANDLE, SET, 0), "size", "the attribute `size_bytes`"),
    (TASK, "getSize", "the attribute `size_bytes`"),
    (TASK, "get_change_sets", "the attribute `change_sets`"),
    (TASK, "onCompleted", "the argument `on_success` of the class"),
    (sl.AvailabilityProvider(), "getAvailabilityFuture", "the attribute `future`"),
    (sl.AvailabilityProvider(), "isAvailable", "the attribute `is_available`"),
    (SET, "getChanges", "an iteration over the set"),
    (SET, "getSequenceNumber", "the attribute `sqn`"),
    (WRITER_RANGE, "getNumberOfKeyGroups", "`len(key_group_range)`"),
    (sl.TaskMailbox(), "tryYield", "the method `drain()`"),
    (sl.StateChangeUploadScheduler, "directScheduler", "the method `direct_scheduler()`"),
    (sl.StateChangeUploadScheduler, "fromConfig", "the method `from_config()`"),
    (sl.TaskChangelogRegistry("memory://r"), "startTracking", "the method `start_tracking()`"),
]  # fmt: skip


@pytest.mark.parametrize(("owner", "name", "written"), CAMEL)
def test_an_unknown_member_of_flink_is_explained(owner: Any, name: str, written: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(owner, name)
    assert str(raised.value).endswith(f"has no attribute {name!r}; Flink's {name} here: {written}")
    assert (name, owner) == (raised.value.name, raised.value.obj)
    assert not hasattr(owner, name)


def test_the_members_of_storages_writers_and_schedulers_are_explained() -> None:
    with sl.FsStateChangelogStorage("memory://names") as storage:
        writer = storage.create_writer("op", WRITER_RANGE)
        for owner, name, written in (
            (storage, "createWriter", "create_writer"),
            (writer, "appendMeta", "append_meta"),
            (writer, "truncateAndClose", "truncate_and_close"),
            (writer, "initialSequenceNumber", "initial_sequence_number"),
            (storage.scheduler, "get_availability_provider", "availability"),
        ):
            with pytest.raises(AttributeError, match=f"Flink's {name} here: .*`{written}"):
                getattr(owner, name)


def test_other_unknown_names_are_not_explained() -> None:
    for owner, name in ((WRITER_RANGE, "nothing"), (WRITER_RANGE, "_getStart"), (SET, "__len")):
        with pytest.raises(AttributeError) as raised:
            getattr(owner, name)
        assert str(raised.value).endswith(f"has no attribute {name!r}")


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_class_of_flink_is_explained(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute {name!r}; Flink's {name} here: "):
        getattr(sl, name)
    with pytest.raises(ImportError, match=f"import name {name!r} from 'statelog'; Flink's {name} "):
        exec(f"from statelog import StateChange, {name}")
    assert not hasattr(sl, name)
    written = PUBLIC_NAMES[name].split("(")[0]
    if " " not in written:
        owner: Any = sl
        for part in written.split("."):
            owner = getattr(owner, part)
    assert name not in sl.__all__


def test_a_name_that_is_not_flinks_is_not_explained() -> None:
    with pytest.raises(AttributeError, match=r"^module 'statelog' has no attribute 'Nothing'$"):
        sl.Nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from statelog import Nothing")


def test_what_the_tables_say_exists() -> None:
    missing = []
    for kind, members in MEMBERS.items():
        home = getattr(sl, kind)
        for flink, written in members.items():
            member = re.fullmatch(r"the (?:attribute|method) `(\w+)(?:\(.*\))?`", written)
            if member and not hasattr(home, member[1]):
                missing.append(f"{kind}.{flink}: {written}")
            assert spelled_here(home, f"get_{flink}") == written
            if hasattr(home, flink):
                missing.append(f"{kind}.{flink} exists")
    assert [] == missing


def test_dir_has_the_public_names_and_nothing_internal() -> None:
    names = dir(sl)
    assert {*sl.__all__, "open", "copy", "__version__"} <= set(names)
    assert [] == [name for name in names if name not in sl.__all__ and not hasattr(sl, name)]
    others = {name for name in names if not name.startswith("__")} - set(sl.__all__)
    assert {"open", "copy"} == others


def test_a_star_import_hides_no_builtin_and_no_module() -> None:
    code = "import copy, builtins; before = copy; from statelog import *; assert open is builtins.open; assert copy is before; FsStateChangelogStorage; fork"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "open" not in sl.__all__ and "copy" not in sl.__all__
    assert sl.open.__module__.startswith("statelog.") and sl.copy.__module__.startswith("statelog.")
