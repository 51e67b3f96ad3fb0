"""Names of Flink that are spelled otherwise: the error says how, and what it says exists."""

import datetime as dt
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import statelog as sl
from statelog import changelog as cl
from statelog.flink_names import CALLS, EXPLAINED, PUBLIC_NAMES, RENAMED, spelled_here
from statelog.runtime.pool import PoolFuture

WRITER_RANGE = sl.KeyGroupRange(0, 127)
HANDLE = cl.FileStateHandle("dstl/a", 1)
SET = cl.StateChangeSet(0, 1, [(1, b"one")])


def test_members_of_objects_that_a_storage_makes_are_explained() -> None:
    with cl.FsStateChangelogStorage("memory://names") as storage:
        writer = storage.create_writer("op", WRITER_RANGE)
        for owner, name in (
            (storage, "createWriter"),
            (writer, "truncateAndClose"),
            (writer.persist(0), "thenAccept"),
            (storage.scheduler, "get_availability_provider"),
            (storage.scheduler.availability.future, "when_complete"),
        ):
            with pytest.raises(AttributeError, match=f"Flink's {name} here: .*`"):
                getattr(owner, name)


def test_other_unknown_names_are_not_explained() -> None:
    owners = (
        (WRITER_RANGE, "nothing"),
        (WRITER_RANGE, "_getStart"),
        (SET, "__len"),
        (cl, "Nothing"),
    )
    for owner, name in owners:
        with pytest.raises(AttributeError) as raised:
            getattr(owner, name)
        assert str(raised.value).endswith(f"has no attribute {name!r}")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from statelog.changelog import Nothing")


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_what_the_error_of_a_class_says_exists(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute {name!r}; Flink's {name} here: "):
        getattr(cl, name)
    assert name not in cl.__all__
    written = PUBLIC_NAMES[name].split("(")[0]
    if " " not in written:
        owner: Any = cl
        for part in written.split("."):
            owner = getattr(owner, part)


def explained_classes() -> list[type]:
    kinds = [getattr(cl, name) for name in cl.__all__]
    return [PoolFuture, *(kind for kind in kinds if isinstance(kind, type))]


def test_the_names_of_the_tables_exist() -> None:
    members = {name for kind in explained_classes() for name in dir(kind)}
    arguments = {
        name for kind in explained_classes() for name in inspect.signature(kind).parameters
    }
    factories = (FACTORIES.from_config, cl.FsStateChangelogStorage.create_writer)
    arguments |= {name for call in factories for name in inspect.signature(call).parameters}
    assert set() == set(RENAMED.values()) - members - arguments
    by_name = {kind.__name__: kind for kind in explained_classes()}
    for member, written in EXPLAINED.items():
        kind, _, flink = member.partition(".")
        assert spelled_here(by_name[kind], f"get_{flink}" if flink.islower() else flink) == written
        assert not hasattr(by_name[kind], flink)
        named = re.fullmatch(r"the (?:attribute|method) `(\w+)(?:\(.*\))?`", written)
        assert named is None or hasattr(by_name[kind], named[1])


UPLOADER = cl.StateChangeFsUploader("memory://calls")
FACTORIES = cl.StateChangeUploadScheduler
WRONG_CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: cl.UploadTask([], success_callback=print, failure_callback=print), r"UploadTask\(change_sets, on_success, on_failure, quick\); success_callback is the argument `on_success`"),
    (lambda: cl.UploadTask(), r"UploadTask\(change_sets, on_success"),
    (lambda: cl.UploadResult.of(HANDLE, None, SET, 0, 0), r"UploadResult.of\(handle, change_set, offset"),
    (lambda: FACTORIES.from_config("job", {}, None, None, None), r"from_config\(options, base_path, job_id=\.\.\."),
    (lambda: cl.BatchingStateChangeUploadScheduler(UPLOADER, 10, dt.timedelta(1), None), r"Scheduler\(uploader, policy, batch_delay_s"),
    (lambda: cl.FsStateChangelogWriter(log_id=0, uploader=None), r"storage.create_writer\(operator_id"),
    (lambda: cl.MailboxExecutor(), r"protocol; Flink's MailboxExecutor here: TaskMailbox\(\)"),
    (lambda: cl.FsStateChangelogStorage("job", cl.ChangelogOptions(), sl.Metrics()), r"Storage\(base_path, options"),
    (lambda: cl.ChangelogOptions(upload_num_threads=1, RETRY_POLICY="fixed"), "RETRY_POLICY is the argument `upload_retry_policy`"),
    (lambda: cl.AvailabilityProvider().is_available(), "the attribute `is_available`, without parentheses"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "written"), WRONG_CALLS)
def test_a_call_as_flink_writes_it_is_explained(call: Callable[[], Any], written: str) -> None:
    with pytest.raises(TypeError, match=written):
        call()


def test_the_errors_of_other_wrong_types_are_not_changed() -> None:
    class Sized:
        def __len__(self) -> int:
            raise TypeError("no length")

    with pytest.raises(TypeError, match=r"^no length$"):
        cl.BatchingStateChangeUploadScheduler(UPLOADER, batch_delay_s=len(Sized()))
    assert cl.AvailabilityProvider().is_available is True
    assert getattr(cl.AvailabilityProvider(), "is_" + "available") is True


def test_a_class_that_derives_from_a_protocol_is_made_as_any_other() -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    class Executor(cl.MailboxExecutor, Named):
        def execute(self, command: Any, description: str = "") -> None: ...

    assert "a" == Executor("a").name
    assert isinstance(Executor("a"), cl.MailboxExecutor)


def test_the_signatures_of_explained_calls_are_their_own() -> None:
    assert "uploader" in inspect.signature(cl.BatchingStateChangeUploadScheduler).parameters
    for call in CALLS:
        assert hasattr(cl, call.partition(".")[0])


def test_schedulers_and_writers_are_instances_of_their_protocols() -> None:
    class Scheduler(cl.StateChangeUploadScheduler):
        def upload(self, task: cl.UploadTask) -> None: ...

        def close(self) -> None: ...

    class Plain:
        upload = close = print

    with cl.FsStateChangelogStorage("memory://protocols", scheduler=Scheduler()) as storage:
        assert isinstance(storage.scheduler, cl.StateChangeUploadScheduler)
        assert isinstance(storage.create_writer("op", WRITER_RANGE), cl.StateChangelogWriter)
        assert storage.scheduler.availability is cl.AvailabilityProvider.AVAILABLE
        assert storage.scheduler.availability.is_available
        assert storage.scheduler.availability.wait(0)
    plain: Any = Plain()
    assert not isinstance(plain, cl.StateChangeUploadScheduler)
    with cl.FsStateChangelogStorage("memory://p", scheduler=plain, inline_bytes=9) as storage:
        assert storage.scheduler.availability.is_available


@pytest.mark.parametrize("name", ["StateChange", "RetryingExecutor"])
def test_a_name_of_the_changelog_is_found(name: str) -> None:
    with pytest.raises(AttributeError, match=r"'statelog' has no .*; .* `statelog\.changelog"):
        getattr(sl, name)
    with pytest.raises(ImportError, match=r"from 'statelog'; .* `statelog\.changelog"):
        exec(f"from statelog import {name}")


def test_dir_has_the_public_names_and_nothing_internal() -> None:
    names = dir(sl)
    assert {*sl.__all__, "open", "copy"} <= set(names)
    assert [] == [name for name in names if name not in sl.__all__ and not hasattr(sl, name)]
    others = {name for name in names if not name.startswith("__")} - set(sl.__all__)
    assert {"open", "copy"} == others


def test_a_star_import_hides_no_builtin_and_no_module() -> None:
    code = "import copy, builtins; before = copy; from statelog import *; assert open is builtins.open; assert copy is before; fork"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "open" not in sl.__all__ and "copy" not in sl.__all__
    assert sl.open.__module__.startswith("statelog.") and sl.copy.__module__.startswith("statelog.")
