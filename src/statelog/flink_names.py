"""
Names of Flink that are spelled otherwise here, for the error of an unknown name.

Most follow from two rules: Java's `camelCase` is `snake_case` here, and a getter is an attribute
without `get_`.  The tables hold the others.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Final, NoReturn

PUBLIC_NAMES: Final = {
    "AvailabilityHelper": "AvailabilityProvider",
    "ByteStreamStateHandleSerializer": "ByteStreamStateHandle.to_json()",
    "ChangelogStateHandleStreamImpl": "ChangelogStateHandle",
    "ChangelogStorageMetricGroup": "Metrics",
    "ChangelogStreamHandleReaderWithCache": "DownloadCache(store, directories)",
    "CheckpointStateOutputStream": "FsCheckpointStateOutputStream",
    "CheckpointStreamFactory": "FsCheckpointStreamFactory",
    "Configuration": "ChangelogOptions.from_mapping({key: value}), with Flink's keys",
    "DuplicatingStateChangeFsUploader": "StateChangeFsUploader(store, backup=LocalBackup(folder))",
    "Duration": "datetime.timedelta of Python",
    "EntropyInjector": "Entropy",
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
"""Classes of Flink, and what to write after `statelog.` in their place."""

MEMBERS: Final = {
    "AvailabilityProvider": {
        "available_future": "the attribute `future`",
        "availability_future": "the attribute `future`",
        "is_approximately_available": "the attribute `is_available`",
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
    "DirectStateChangeUploadScheduler": {"availability_provider": "the attribute `availability`"},
    "BatchingStateChangeUploadScheduler": {"availability_provider": "the attribute `availability`"},
}
"""Members of Flink's classes by class here, in snake_case and without `get_`, and what to write."""

_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_NEXT_WORD: Final = re.compile("_([a-z0-9])")


def spelled_here(kind: type, name: str) -> str | None:
    """Return what to write in place of the member *name* of Flink's class, None if unknown."""
    snake = _HUMP.sub(r"_\1", name).lower().strip("_")
    plain = snake.removeprefix("get_")
    for each in kind.__mro__:
        if (text := MEMBERS.get(each.__name__, {}).get(plain)) is not None:
            return text
    for candidate in (snake, plain, f"is_{plain}", plain.removeprefix("is_"), f"{plain}_bytes"):
        member = inspect.getattr_static(kind, candidate, None)
        if candidate != name and member and not isinstance(member, _FlinkName):
            is_method = inspect.isroutine(member) or isinstance(member, classmethod | staticmethod)
            return f"the method `{candidate}()`" if is_method else f"the attribute `{candidate}`"
    return None


def unknown_member(kind: type, name: str, owner: object) -> AttributeError:
    """Return the error for a member that *owner*, of the class *kind*, does not have."""
    whose = owner.__name__ if isinstance(owner, type) else kind.__name__
    text = f"{whose!r} has no attribute {name!r}"
    if not name.startswith("_") and (written := spelled_here(kind, name)) is not None:
        text += f"; Flink's {name} here: {written}"
    return AttributeError(text, name=name, obj=owner)


class _FlinkName:
    """A name of Flink that a class spells otherwise: reading it raises the error that says how."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type) -> NoReturn:
        raise unknown_member(kind, self._name, kind if owner is None else owner)


def _spellings(member: str, is_method: bool = True) -> Iterator[str]:
    """Yield how Flink may spell a member of a class here, in camelCase and in snake_case."""
    if member.startswith("_"):
        return
    stems = {member, member.removesuffix("_bytes"), member.removeprefix("is_")}
    prefixes = ("", "get_") if is_method else ("", "get_", "is_")
    for snake in (prefix + stem for prefix in prefixes for stem in stems):
        yield snake
        yield _NEXT_WORD.sub(lambda word: word[1].upper(), snake)


class FlinkNames:
    """
    A class whose error of an unknown attribute says how Flink's name is spelled here.

    Each of Flink's names is a descriptor.  A `__getattr__` would need no list of them, but Python
    reads every attribute of such a class without its cache, which costs an append a fifth of its
    time.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        members: dict[str, bool] = {}  # and whether it is a method
        for kind in cls.__mro__[:-1]:
            members |= dict.fromkeys(vars(kind).get("__annotations__", ()), False)
            members |= {
                name: inspect.isroutine(value)
                for name, value in vars(kind).items()
                if not isinstance(value, _FlinkName)
            }
        names = {name for member in members.items() for name in _spellings(*member)}
        names |= {name for member in MEMBERS.get(cls.__name__, ()) for name in _spellings(member)}
        for name in names.difference(members):
            setattr(cls, name, _FlinkName(name))

    def __dir__(self) -> Iterable[str]:
        kind = type(self)
        return [
            name
            for name in super().__dir__()
            if not isinstance(inspect.getattr_static(kind, name, None), _FlinkName)
        ]


def unknown_name(name: str) -> Exception:
    """Return the error for a name that the package `statelog` does not have."""
    text = f"module 'statelog' has no attribute {name!r}"
    if (written := PUBLIC_NAMES.get(name)) is None:
        return AttributeError(text, name=name, obj=sys.modules["statelog"])
    what = written if " " in written.split("(")[0] else f"statelog.{written}"
    hint = f"Flink's {name} here: {what}"
    # `from statelog import ...` drops the text of an AttributeError; its machinery calls first.
    if sys._getframe(2).f_code.co_filename.startswith("<frozen importlib"):
        return ImportError(f"cannot import name {name!r} from 'statelog'; {hint}", name="statelog")
    return AttributeError(f"{text}; {hint}", name=name, obj=sys.modules["statelog"])
