"""
Names of Flink that are spelled otherwise here, for the errors of unknown names and wrong calls.

Most follow from two rules: Java's `camelCase` is `snake_case` here, and a getter is an attribute
without `get_`.  The tables hold the others.  No class refers to this module: `explain_names` adds the
spellings to the public classes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import opcode
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Final, NoReturn, ParamSpec, TypeVar

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
    "Executor": "the argument upload_threads of BatchingStateChangeUploadScheduler: a number",
    "FileSystem": "open_store(location)",
    "FixedRetryPolicy": "RetryPolicy.fixed(max_attempts, timeout_s, delay_after_failure_s)",
    "FsStateChangelogOptions": "ChangelogOptions",
    "FsStateChangelogStorageFactory": "FsStateChangelogStorage(path, options=...)",
    "FsStateChangelogStorageForRecovery": "read_changes(store, handle)",
    "InMemoryStateChangelogStorage": 'FsStateChangelogStorage("memory://test")',
    "JobID": "the argument job_id of FsStateChangelogStorage: text, the name of one folder",
    "KeyGroupRangeAssignment": "key_group_range_for_operator, split_key_groups",
    "LocalChangelogRegistryImpl": "LocalChangelogRegistry",
    "MailboxExecutorImpl": "TaskMailbox",
    "MailboxProcessor": "TaskMailbox",
    "MemorySize": 'a number of bytes, or text such as "5 mb" in ChangelogOptions.from_mapping',
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
    "UploadThrottle": "BatchingStateChangeUploadScheduler",
}
"""Classes of Flink, and what to write after `statelog.changelog.` in their place."""

EXPLAINED: Final = [
    "AvailabilityProvider",
    "BatchingStateChangeUploadScheduler",
    "ByteStreamStateHandle",
    "ChangelogOptions",
    "ChangelogStateHandle",
    "DirectStateChangeUploadScheduler",
    "FileStateHandle",
    "FsCheckpointStateOutputStream",
    "FsCheckpointStreamFactory",
    "FsStateChangelogStorage",
    "FsStateChangelogWriter",
    "HandleAndOffset",
    "KeyGroupRange",
    "LocalChangelogRegistry",
    "LocalRecoveryConfig",
    "PoolFuture",
    "SequenceNumber",
    "SequenceNumberRange",
    "SnapshotResult",
    "StateChangeFsUploader",
    "StateChangeSet",
    "StateChangeUploadScheduler",
    "TaskChangelogRegistry",
    "TaskMailbox",
    "UploadResult",
    "UploadTask",
    "UploadTasksResult",
]
"""Classes whose errors of unknown members say what to write."""

MEMBERS: Final[dict[str, dict[str, str]]] = {
    "AvailabilityProvider": {
        "available_future": "the attribute `future`",
        "availability_future": "the attribute `future`",
        "is_approximately_available": "the attribute `is_available`",
    },
    "PoolFuture": {
        "exceptionally": "`future.exception()`, the error of the future or None",
        "get": "the method `result(timeout)`",
        "join": "the method `result(timeout)`",
        "then_accept": "`future.add_done_callback(f)`: f is called with the future, so `f.result()`",
        "then_apply": "`future.add_done_callback(f)`: f is called with the future, so `f.result()`",
        "then_compose": "`future.add_done_callback(f)`: f may call the writer again",
        "then_run": "`future.add_done_callback(f)`: f is called with the future",
        "when_complete": "`future.add_done_callback(f)`: `f.exception()` or `f.result()`",
    },
    "ByteStreamStateHandle": {
        "handle_name": "the attribute `name`",
        "state_size": "the attribute `size_bytes`",
        "stream_state_handle_id": "the attribute `name`",
        "open_input_stream": "the attribute `data`",
        "discard_state": "not needed: the bytes are in the handle",
    },
    "ChangelogStateHandle": {
        "checkpointed_size": "the attribute `incremental_size_bytes`",
        "discard_state": "done by the registry and by garbage collection",
        "state_size": "the attribute `size_bytes`",
        "stream_state_handle": "the attribute `handles_and_offsets`",
        "stream_state_handles": "the attribute `handles_and_offsets`",
    },
    "FileStateHandle": {
        "file_path": "the attribute `path`",
        "state_size": "the attribute `size_bytes`",
        "open_input_stream": "`store.get(handle.path)`",
        "discard_state": "`store.delete([handle.path])`",
    },
    "FsCheckpointStateOutputStream": {"pos": "the method `get_pos()`"},
    "FsCheckpointStreamFactory": {
        "FsCheckpointStateOutputStream": "`statelog.changelog.FsCheckpointStateOutputStream`",
        "file_system": "the argument `store`",
        "checkpoint_directory": "the argument `exclusive_directory`",
        "shared_state_directory": "the argument `shared_directory`",
        "file_state_size_threshold": "the argument `threshold_bytes`",
        "file_state_threshold": "the argument `threshold_bytes`",
        "write_buffer_size": "the argument `write_buffer_bytes`",
    },
    "FsStateChangelogStorage": {
        "config": "the argument `options`",
        "local_recovery_config": "the argument `local_recovery`",
        "metric_group": "the argument `metrics`",
        "changelog_registry": "the argument `registry`",
        "mailbox_executor": "the argument `mailbox`",
    },
    "KeyGroupRange": {
        "start_key_group": "the attribute `start`",
        "end_key_group": "the attribute `end`",
        "number_of_key_groups": "`len(key_group_range)`",
        "contains": "`key_group in key_group_range`",
    },
    "LocalRecoveryConfig": {
        "local_state_directory_provider": "the attribute `directories`",
        "local_recovery_enabled": "the attribute `recovery`",
        "local_backup_enabled": "the attribute `backup`",
    },
    "SequenceNumber": {"compare_to": "`<`, `==` and `>`"},
    "SequenceNumberRange": {
        "from": "the attribute `from_sqn`",
        "to": "the attribute `to_sqn`",
        "size": "`len(numbers)`",
        "contains": "`number in numbers`",
    },
    "SnapshotResult": {
        "job_manager_owned_snapshot": "the attribute `job_manager_owned`",
        "task_local_snapshot": "the attribute `task_local`",
        "state_size": "`job_manager_owned.size_bytes`",
    },
    "StateChangeSet": {
        "changes": "an iteration over the set",
        "sequence_number": "the attribute `sqn`",
        "size": "the attribute `size_bytes`",
    },
    "TaskMailbox": {
        "yield": "the method `run(until)`",
        "try_yield": "the method `drain()`",
        "submit": "the method `execute(command)`",
    },
    "UploadResult": {
        "local_offset": "`local.offset`",
        "local_stream_handle": "`local.handle`",
        "offset": "`entry.offset`",
        "sequence_number": "the attribute `sqn`",
        "size": "the attribute `size_bytes`",
        "state_size": "the attribute `size_bytes`",
        "stream_state_handle": "`entry.handle`",
    },
    "UploadTask": {
        "changeset": "the attribute `change_sets`",
        "is_finished": "the attribute `finished`",
        "on_completed": "the argument `on_success` of the class",
        "on_failed": "the argument `on_failure` of the class",
        "size": "the attribute `size_bytes`",
        "success_callback": "the argument `on_success` of the class",
        "failure_callback": "the argument `on_failure` of the class",
    },
    "UploadTasksResult": {
        "handle": "the attribute `handles`",
        "stream_state_handle": "the attribute `handles`",
        "local_handle": "in `tasks`, as `results[0].local.handle`",
        "tasks_offsets": "the attribute `tasks`",
    },
    "StateChangeUploadScheduler": {"availability_provider": "the attribute `availability`"},
    "DirectStateChangeUploadScheduler": {"availability_provider": "the attribute `availability`"},
    "BatchingStateChangeUploadScheduler": {
        "availability_provider": "the attribute `availability`",
        "max_batch_size": "the argument `batch_threshold_bytes`, a number of bytes",
        "batch_timeout": "the argument `batch_delay_s`, a timedelta or seconds",
        "executor": "the argument `upload_threads`, a number",
        "config": "the argument `options`",
        "metric_group": "the argument `metrics`",
        "changelog_registry": "the argument `registry`",
        "local_recovery_config": "the argument `local_recovery`",
    },
    "ChangelogOptions": {
        "PREEMPTIVE_PERSIST_THRESHOLD": "the field `preemptive_persist_threshold_bytes`",
        "PERSIST_DELAY": "the field `batch_persist_delay`",
        "PERSIST_SIZE_THRESHOLD": "the field `batch_persist_size_threshold_bytes`",
        "UPLOAD_BUFFER_SIZE": "not an option: a file is put whole; `from_mapping` accepts the key",
        "NUM_UPLOAD_THREADS": "the field `upload_num_threads`",
        "NUM_DISCARD_THREADS": "the field `discard_num_threads`",
        "IN_FLIGHT_DATA_LIMIT": "the field `upload_max_in_flight_bytes`",
        "RETRY_POLICY": "the field `upload_retry_policy`",
        "UPLOAD_TIMEOUT": "the field `upload_timeout`",
        "RETRY_MAX_ATTEMPTS": "the field `upload_max_attempts`",
        "RETRY_DELAY_AFTER_FAILURE": "the field `upload_next_attempt_delay`",
        "CACHE_IDLE_TIMEOUT": "the field `download_local_cache_idle_timeout`",
        "BASE_PATH": "the field `base_path`",
        "COMPRESSION_ENABLED": "the field `compression_enabled`",
    },
}
"""
Members of Flink's classes, and arguments of their calls, by class here, and what to write.

In snake_case and without `get_`; constants and nested classes as Flink writes them.
"""

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
    "StateChangeFsUploader": "",
    "StateChangeUploadScheduler.from_config": "BatchingStateChangeUploadScheduler.from_config"
    "(options, base_path, job_id=..., metrics=..., registry=..., local_recovery=...)",
    "TaskChangelogRegistry": "",
    "UploadResult.of": "",
    "UploadTask": "",
}
"""Calls that Flink writes with other arguments, and what to write; "" for the arguments here."""

ATTRIBUTES: Final = (("AvailabilityProvider", "is_available"),)
"""Attributes that are methods of the same name in Flink."""

_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_NEXT_WORD: Final = re.compile("_([a-z0-9])")

P = ParamSpec("P")
T = TypeVar("T")


def spelled_here(kind: type, name: str) -> str | None:
    """Return what to write in place of the member *name* of Flink's class, None if unknown."""
    snake = _HUMP.sub(r"_\1", name).lower().strip("_")
    plain = snake.removeprefix("get_")
    for each in kind.__mro__:
        members = MEMBERS.get(each.__name__, {})
        for spelling in (name, plain, plain.upper()):
            if spelling in members:
                return members[spelling]
    for candidate in (snake, plain, f"is_{plain}", plain.removeprefix("is_"), f"{plain}_bytes"):
        member = inspect.getattr_static(kind, candidate, None)
        if candidate != name and member and not isinstance(member, _FlinkName):
            is_method = inspect.isroutine(member) or isinstance(member, classmethod | staticmethod)
            return f"the method `{candidate}()`" if is_method else f"the attribute `{candidate}`"
    return None


class _FlinkName:
    """
    A name of Flink that a class spells otherwise: reading it raises the error that says how.

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


def _spellings(member: str, is_method: bool = True) -> Iterator[str]:
    """Yield how Flink may spell a member of a class here, in camelCase and in snake_case."""
    if member.startswith("_"):
        return
    if not member.islower():  # a constant, or a nested class
        yield member
        return
    stems = {member, member.removesuffix("_bytes"), member.removeprefix("is_")}
    prefixes = ("", "get_") if is_method else ("", "get_", "is_")
    for snake in (prefix + stem for prefix in prefixes for stem in stems):
        yield snake
        yield _NEXT_WORD.sub(lambda word: word[1].upper(), snake)


def _add_names(kind: type) -> None:
    """Add Flink's names of the members of a class to it; `dir` of an object does not list them."""
    # The attributes of a protocol are what its objects must have, so they are added to its class.
    home: type = type(kind) if getattr(kind, "_is_protocol", False) else kind
    members: dict[str, bool] = {}  # and whether it is a method
    for each in {*kind.__mro__[:-1], home}:
        members |= dict.fromkeys(vars(each).get("__annotations__", ()), False)
        members |= {
            name: inspect.isroutine(value)
            for name, value in vars(each).items()
            if not isinstance(value, _FlinkName)
        }
    names = {name for member in members.items() for name in _spellings(*member)}
    names |= {name for member in MEMBERS.get(kind.__name__, ()) for name in _spellings(member)}
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
    """Return *function*, whose error of wrong arguments says what to write."""

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


def _form(kind: type, call: str, parameters: Iterable[str], keywords: Iterable[str]) -> str:
    """Return what to write in place of a call of Flink."""
    names = ", ".join(name for name in parameters if name not in ("self", "cls"))
    hints = [
        f"; {keyword} is {text}"
        for keyword in keywords
        if keyword not in parameters and (text := spelled_here(kind, keyword)) is not None
    ]
    return f"Flink's {call} here: {CALLS[call] or f'{call}({names})'}{''.join(hints)}"


def _explain_call(kind: type, call: str) -> None:
    """Let the errors of a call of a class, or of one of its methods, say what to write."""
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
    """Let an attribute, which Flink calls, say that it is called without parentheses."""
    getter = vars(kind)[name].fget

    def read(owner: object) -> object:
        if _is_called(sys._getframe(1)):
            raise TypeError(f"Flink's {name}() here: the attribute `{name}`, without parentheses")
        return getter(owner)

    functools.update_wrapper(read, getter)
    setattr(kind, name, property(read))


def _is_called(frame: FrameType) -> bool:
    """Return whether the attribute that the code of *frame* reads now is called next."""
    code, at = frame.f_code.co_code, frame.f_lasti
    operation = opcode.opname[code[at]]
    return operation == "LOAD_METHOD" or (
        sys.version_info >= (3, 12) and operation == "LOAD_ATTR" and bool(code[at + 1] & 1)
    )


def explain_names(classes: Iterable[object]) -> None:
    """Add what Flink writes in place of members and calls to the errors of *classes*."""
    by_name = {kind.__name__: kind for kind in classes if isinstance(kind, type)}
    for name in EXPLAINED:
        _add_names(by_name[name])
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
    """Return the error for a name that `statelog` does not have, and another package may have."""
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
