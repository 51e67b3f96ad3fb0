"""
Map Flink's names to statelog's, for errors about unknown names and incorrect calls.

Most follow from two rules: Java's `camelCase` is `snake_case` here, and a getter is an attribute
without `get_`.  The tables hold the others.  No class refers to this module: `explain_names` adds
the spellings to the public classes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import opcode
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from types import FrameType
from typing import Final, NoReturn, ParamSpec, Protocol, TypeVar

PUBLIC_NAMES: Final = {
    "AvailabilityHelper": "AvailabilityProvider",
    "ByteStreamStateHandleSerializer": "ByteStreamStateHandle.to_json()",
    "ChangelogStateHandleStreamImpl": "ChangelogStateHandle",
    "ChangelogStorageMetricGroup": "Metrics",
    "ChangelogStreamHandleReaderWithCache": "DownloadCache(store, directories)",
    "CheckpointStateOutputStream": "FsCheckpointStateOutputStream",
    "CheckpointStreamFactory": "FsCheckpointStreamFactory",
    "CompletableFuture": "concurrent.futures.Future of Python",
    "Configuration": "ChangelogOptions.from_mapping({key: value}), with Flink's keys",
    "DuplicatingStateChangeFsUploader": "StateChangeFsUploader(store, backup=LocalBackup(folder))",
    "Duration": "datetime.timedelta of Python",
    "EntropyInjector": "Entropy",
    "ExecutorService": "the argument upload_threads of BatchingStateChangeUploadScheduler: a number",
    "Executor": "the argument upload_threads of BatchingStateChangeUploadScheduler: a number",
    "FileSystem": "open_store(location)",
    "FixedRetryPolicy": "RetryPolicy.fixed(max_attempts, timeout_s, delay_after_failure_s)",
    "FsStateChangelogOptions": "ChangelogOptions",
    "FsStateChangelogStorageFactory": "FsStateChangelogStorage(path, options=...)",
    "FsStateChangelogStorageForRecovery": "read_changes(store, handle)",
    "IOException": "OSError of Python",
    "IllegalArgumentException": "ValueError of Python",
    "InMemoryStateChangelogStorage": 'FsStateChangelogStorage("memory://test")',
    "JobID": "the argument job_id of FsStateChangelogStorage: text, the name of one folder",
    "KeyGroupRangeAssignment": "key_group_range_for_operator, split_key_groups",
    "LocalChangelogRegistryImpl": "LocalChangelogRegistry",
    "MailboxExecutorImpl": "TaskMailbox",
    "MailboxProcessor": "TaskMailbox",
    "MemorySize": 'a number of bytes, or text such as "5 mb" in ChangelogOptions.from_mapping',
    "MetricGroup": "Metrics",
    "Path": "text: a path or URL for open_store, a name in the store elsewhere",
    "ReadableConfig": "ChangelogOptions.from_mapping({key: value}), with Flink's keys",
    "RelativeFileStateHandle": "FileStateHandle",
    "RetryingExecutor": "BatchingStateChangeUploadScheduler(uploader, policy=RetryPolicy.fixed())",
    "StateChangelogHandleReader": "read_changes(store, handle)",
    "StateChangelogHandleStreamHandleReader": "read_changes(store, handle)",
    "StateChangelogStorage": "FsStateChangelogStorage",
    "StateChangelogStorageFactory": "FsStateChangelogStorage(path, options=...)",
    "StateChangelogStorageLoader": "FsStateChangelogStorage(path, options=...)",
    "StateChangelogStorageView": "read_changes(store, handle)",
    "StateChangeSetUpload": "UploadTask",
    "TaskManagerJobMetricGroup": "Metrics",
    "TimeoutException": "TimeoutError of Python",
    "UUID": "not needed: a storage numbers its writers",
    "UploadThrottle": "BatchingStateChangeUploadScheduler",
}
"""Classes of Flink, and what to write after `statelog.changelog.` in their place."""

RENAMED: Final = {
    "availability_future": "future",
    "availability_provider": "availability",
    "available_future": "future",
    "batch_timeout": "batch_delay_s",
    "cache_idle_timeout": "download_local_cache_idle_timeout",
    "change": "value",
    "changelog_registry": "registry",
    "changeset": "change_sets",
    "checkpoint_directory": "exclusive_directory",
    "checkpointed_size": "incremental_size_bytes",
    "config": "options",
    "end_key_group": "end",
    "executor": "upload_threads",
    "failure_callback": "on_failure",
    "file_path": "path",
    "file_state_size_threshold": "threshold_bytes",
    "file_state_threshold": "threshold_bytes",
    "file_system": "store",
    "from": "from_sqn",
    "handle": "handles",
    "handle_name": "name",
    "in_flight_data_limit": "upload_max_in_flight_bytes",
    "is_approximately_available": "is_available",
    "job_manager_owned_snapshot": "job_manager_owned",
    "local_backup_enabled": "backup",
    "local_recovery_config": "local_recovery",
    "local_recovery_enabled": "recovery",
    "local_state_directory_provider": "directories",
    "mailbox_executor": "mailbox",
    "max_batch_size": "batch_threshold_bytes",
    "metric_group": "metrics",
    "num_discard_threads": "discard_num_threads",
    "num_upload_threads": "upload_num_threads",
    "on_completed": "on_success",
    "on_failed": "on_failure",
    "persist_delay": "batch_persist_delay",
    "persist_size_threshold": "batch_persist_size_threshold_bytes",
    "pos": "get_pos",
    "retry_delay_after_failure": "upload_next_attempt_delay",
    "retry_max_attempts": "upload_max_attempts",
    "retry_policy": "upload_retry_policy",
    "sequence_number": "sqn",
    "shared_state_directory": "shared_directory",
    "start_key_group": "start",
    "state_size": "size_bytes",
    "stream_state_handle_id": "name",
    "stream_state_handles": "handles_and_offsets",
    "submit": "execute",
    "success_callback": "on_success",
    "task_local_snapshot": "task_local",
    "tasks_offsets": "tasks",
    "to": "to_sqn",
    "try_yield": "drain",
    "write_buffer_size": "write_buffer_bytes",
    "yield": "run",
}
"""Members and arguments of Flink, in snake_case and without `get_`, and their names here."""

EXPLAINED: Final = {
    "ByteStreamStateHandle.discard_state": "not needed: the bytes are in the handle",
    "ByteStreamStateHandle.open_input_stream": "the attribute `data`",
    "ChangelogOptions.upload_buffer_size": "not an option: a file is put whole; `from_mapping` accepts the key",
    "ChangelogStateHandle.discard_state": "done by the registry and by garbage collection",
    "ChangelogStateHandle.stream_state_handle": "the attribute `handles_and_offsets`",
    "FileStateHandle.discard_state": "`store.delete([handle.path])`",
    "FileStateHandle.open_input_stream": "`store.get(handle.path)`",
    "FsCheckpointStreamFactory.FsCheckpointStateOutputStream": "`statelog.changelog.FsCheckpointStateOutputStream`",
    "FsCheckpointStreamFactory.to_string": "`str(factory)`",
    "FsStateChangelogStorage.create_reader": "the method `read(handle)`",
    "KeyGroupRange.contains": "`key_group in key_group_range`",
    "KeyGroupRange.number_of_key_groups": "`len(key_group_range)`",
    "PoolFuture.exceptionally": "`future.exception()`, the error of the future or None",
    "PoolFuture.get": "the method `result(timeout)`",
    "PoolFuture.handle": "`future.add_done_callback(f)`: `f.exception()` or `f.result()`",
    "PoolFuture.join": "the method `result(timeout)`",
    "PoolFuture.then_accept": "`future.add_done_callback(f)`: f is called with the future, so `f.result()`",
    "PoolFuture.then_apply": "`future.add_done_callback(f)`: f is called with the future, so `f.result()`",
    "PoolFuture.then_compose": "`future.add_done_callback(f)`: f may call the writer again",
    "PoolFuture.then_run": "`future.add_done_callback(f)`: f is called with the future",
    "PoolFuture.when_complete": "`future.add_done_callback(f)`: `f.exception()` or `f.result()`",
    "SequenceNumber.compare_to": "`<`, `==` and `>`",
    "SequenceNumberRange.contains": "`number in numbers`",
    "SequenceNumberRange.size": "`len(numbers)`",
    "SnapshotResult.state_size": "`job_manager_owned.size_bytes`",
    "StateChangeSet.changes": "an iteration over the set",
    "UploadResult.handle": "`entry.handle`",
    "UploadResult.local_offset": "`local.offset`",
    "UploadResult.local_stream_handle": "`local.handle`",
    "UploadResult.offset": "`entry.offset`",
    "UploadResult.stream_state_handle": "`entry.handle`",
    "UploadTasksResult.local_handle": "in `tasks`, as `results[0].local.handle`",
    "UploadTasksResult.stream_state_handle": "the attribute `handles`",
}
"""Flink members without a counterpart, by statelog class, and what to write instead."""

CALLS: Final = {
    "BatchingStateChangeUploadScheduler": "",
    "BatchingStateChangeUploadScheduler.from_config": "",
    "ChangelogOptions": "ChangelogOptions(upload_num_threads=..., ...), or from_mapping({key: value})",
    "FsCheckpointStreamFactory": "",
    "FsStateChangelogStorage": "",
    "FsStateChangelogStorage.create_writer": "",
    "FsStateChangelogWriter": "storage.create_writer(operator_id, key_group_range, mailbox)",
    "LocalRecoveryConfig": "",
    "MailboxExecutor": "TaskMailbox()",
    "RetryPolicy.fixed": "",
    "StateChangeFsUploader": "",
    "StateChangeSet": "",
    "StateChangeUploadScheduler.from_config": "BatchingStateChangeUploadScheduler.from_config"
    "(options, base_path, job_id=..., metrics=..., registry=..., local_recovery=...)",
    "TaskChangelogRegistry": "",
    "UploadResult.of": "",
    "UploadTask": "",
    "UploadTasksResult": "",
}
"""Calls with different arguments in Flink, and what to write; "" for statelog's arguments."""

ATTRIBUTES: Final = (("AvailabilityProvider", "is_available"),)
"""Attributes that are methods of the same name in Flink."""

_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_NEXT_WORD: Final = re.compile("_([a-z0-9])")

P = ParamSpec("P")
T = TypeVar("T")


def spelled_here(kind: type, name: str, arguments: Iterable[str] = ()) -> str | None:
    """Return statelog's name for a member or argument that Flink calls *name*, or None."""
    snake = _HUMP.sub(r"_\1", name).lower().strip("_")
    plain = snake.removeprefix("get_")
    for base in kind.__mro__:
        for spelling in (name, plain):
            if (text := EXPLAINED.get(f"{base.__name__}.{spelling}")) is not None:
                return text
    kinds = dict.fromkeys(_arguments(kind), "argument") | _members(kind)
    kinds |= dict.fromkeys(arguments, "argument")
    stem = plain.removeprefix("is_")
    here = (
        RENAMED.get(plain, ""),
        snake,
        plain,
        f"is_{plain}",
        stem,
        f"{plain}_bytes",
        f"{plain}_s",
    )
    for candidate in here:
        if candidate != name and candidate in kinds:
            call = "()" if kinds[candidate] == "method" else ""
            return f"the {kinds[candidate]} `{candidate}{call}`"
    return None


def _home(kind: type) -> type:
    """Return the class in which the members of *kind* are defined and Flink's names are added."""
    # The attributes of a protocol are what its objects must have, so they are added to its class.
    return type(kind) if getattr(kind, "_is_protocol", False) else kind


def _members(kind: type) -> dict[str, str]:
    """Return the members of a class, and whether each is an attribute or a method."""
    members: dict[str, str] = {}
    for base in {*kind.__mro__[:-1], _home(kind)}:
        members |= dict.fromkeys(vars(base).get("__annotations__", ()), "attribute")
        for name, value in vars(base).items():
            if not isinstance(value, _FlinkName):
                is_method = inspect.isroutine(value) or isinstance(
                    value, classmethod | staticmethod
                )
                members[name] = "method" if is_method else "attribute"
    return members


def _arguments(kind: type) -> Iterable[str]:
    return inspect.signature(kind).parameters


class _FlinkName:
    """
    A Flink name that is spelled differently here; reading it raises an error with our name.

    A `__getattr__` would need no list of names, but Python reads every attribute of such a class
    without its cache, which costs an append a fifth of its time.
    """

    __slots__ = ("_kind", "_name")

    def __init__(self, kind: type, name: str) -> None:
        self._kind = kind
        self._name = name

    def __get__(self, owner: object, _: type) -> NoReturn:
        text = f"{self._kind.__name__!r} has no attribute {self._name!r}"
        text += f"; Flink's {self._name} here: {spelled_here(self._kind, self._name)}"
        raise AttributeError(text, name=self._name, obj=self._kind if owner is None else owner)


def _spellings(member: str) -> Iterator[str]:
    """Yield the names that Flink may use for a member: in both cases, and as a constant."""
    if member.startswith("_"):
        return
    if not member.islower():  # a nested class
        yield member
        return
    stems = {member.removeprefix("is_"), member.removesuffix("_bytes"), member.removesuffix("_s")}
    for snake in (prefix + stem for prefix in ("", "get_", "is_") for stem in {member, *stems}):
        yield snake
        yield snake.upper()
        yield _NEXT_WORD.sub(lambda word: word[1].upper(), snake)


def _add_names(kind: type) -> None:
    """Add Flink's member names to a class; `dir` of an instance does not list them."""
    home = _home(kind)
    members = _members(kind)
    here = {*members, *_arguments(kind)}
    names = {name for member in members for name in _spellings(member)}
    names |= {
        spelling
        for flink, name in RENAMED.items()
        if name in here
        for spelling in _spellings(flink)
    }
    for text in EXPLAINED:
        owner, _, flink = text.partition(".")
        if owner == kind.__name__:
            names |= set(_spellings(flink))
    added: dict[str, object] = {
        name: _FlinkName(kind, name) for name in names.difference(members, dir(home))
    }
    if home is kind:
        added["__dir__"] = functools.partialmethod(_plain_dir, home.__dir__)
    for name, value in added.items():
        setattr(home, name, value)


def _plain_dir(owner: T, listed: Callable[[T], Iterable[str]]) -> list[str]:
    return [
        name
        for name in listed(owner)
        if not isinstance(inspect.getattr_static(type(owner), name, None), _FlinkName)
    ]


def _explained(kind: type, call: str, function: Callable[P, T]) -> Callable[P, T]:
    """Wrap *function* so that the error for wrong arguments shows the correct call."""

    @functools.wraps(function)
    def explaining(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            parameters = inspect.signature(function).parameters
            try:
                inspect.signature(function).bind(*args, **kwargs)
                is_wrong_call = getattr(kind, "_is_protocol", False)
            except TypeError:
                is_wrong_call = True
            if is_wrong_call:
                error.args = (f"{error}; {_form(kind, call, parameters, kwargs)}",)
            raise

    return explaining


def _form(kind: type, call: str, parameters: Collection[str], keywords: Iterable[str]) -> str:
    """Return what to write in place of a Flink call."""
    names = ", ".join(name for name in parameters if name not in ("self", "cls"))
    hints = [
        f"; {keyword} is {text}"
        for keyword in keywords
        if keyword not in parameters
        and (text := spelled_here(kind, keyword, parameters)) is not None
    ]
    return f"Flink's {call} here: {CALLS[call] or f'{call}({names})'}{''.join(hints)}"


def _explain_call(kind: type, call: str) -> None:
    """Make errors from calling a class or one of its methods show the correct call."""
    name = call.partition(".")[2]
    if not name and getattr(kind, "_is_protocol", False):
        _explain_protocol(kind, call)
        return
    home = kind if not name or name in vars(kind) else type(kind)
    member = vars(home)[name or "__init__"]
    explained: object
    if isinstance(member, classmethod):
        explained = classmethod(_explained(kind, call, member.__func__))
    else:
        explained = _explained(kind, call, member)
    setattr(home, name or "__init__", explained)


def _explain_protocol(kind: type, call: str) -> None:
    def refuse(owner: object, *args: object, **kwargs: object) -> None:
        if type(owner) is kind:
            raise TypeError(f"{call} is a protocol; {_form(kind, call, (), kwargs)}")
        following: Callable[..., None] = super(kind, owner).__init__  # type: ignore[arg-type]
        following(*args, **kwargs)

    name = "__init__"
    setattr(kind, name, refuse)


def _explain_attribute(kind: type, name: str) -> None:
    """Make an attribute that is a method in Flink explain that it must not be called."""
    getter = vars(kind)[name].fget

    def read(owner: object) -> object:
        if _is_called(sys._getframe(1)):
            raise TypeError(f"Flink's {name}() here: the attribute `{name}`, without parentheses")
        return getter(owner)

    functools.update_wrapper(read, getter)
    setattr(kind, name, property(read))


def _is_called(frame: FrameType) -> bool:
    """Return whether *frame* calls the attribute that it is reading."""
    code = frame.f_code.co_code
    instruction = frame.f_lasti
    operation = opcode.opname[code[instruction]]
    return operation == "LOAD_METHOD" or (
        sys.version_info >= (3, 12) and operation == "LOAD_ATTR" and bool(code[instruction + 1] & 1)
    )


def explain_names(classes: Iterable[object]) -> None:
    """Add hints about Flink's members and calls to the errors of *classes*."""
    by_name = {kind.__name__: kind for kind in classes if isinstance(kind, type)}
    for kind in by_name.values():
        # The class of most protocols is one of Python, which they share.
        if not issubclass(kind, Exception | Enum) and _home(kind) is not type(Protocol):
            _add_names(kind)
    for call in CALLS:
        _explain_call(by_name[call.partition(".")[0]], call)
    for name, attribute in ATTRIBUTES:
        _explain_attribute(by_name[name], attribute)


def unknown_name(name: str) -> Exception:
    """Return the error for a name that `statelog.changelog` does not have."""
    written = PUBLIC_NAMES.get(name)
    if written is None:
        return _no_name("statelog.changelog", name, "")
    what = written if " " in written.split("(")[0] else f"statelog.changelog.{written}"
    return _no_name("statelog.changelog", name, f"; Flink's {name} here: {what}")


def name_elsewhere(name: str) -> Exception:
    """Return the error for a name that is not in `statelog` but may be in a subpackage."""
    if name in importlib.import_module("statelog.changelog").__all__:
        return _no_name("statelog", name, f"; it is `statelog.changelog.{name}`")
    if name in PUBLIC_NAMES:
        return _no_name("statelog", name, "; Flink's nouns are in `statelog.changelog`")
    return _no_name("statelog", name, "")


def _no_name(package: str, name: str, hint: str) -> Exception:
    """Return the error for a name that a package does not have."""
    caller: FrameType | None = sys._getframe(1)
    while caller and caller.f_globals.get("__name__", "").partition(".")[0] == "statelog":
        caller = caller.f_back
    # `from package import ...` drops the text of an AttributeError; its machinery is the caller then.
    if hint and caller and caller.f_code.co_filename.startswith("<frozen importlib"):
        return ImportError(f"cannot import name {name!r} from {package!r}{hint}", name=package)
    text = f"module {package!r} has no attribute {name!r}{hint}"
    return AttributeError(text, name=name, obj=sys.modules[package])
