"""
Watch a simulated history: pass every step of every core to its checker.

The checkers are in `policy_checkers.py`; checks of the whole are in `history_oracle.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.campaigns.simulation.policy_checkers import (
    BatchPolicy,
    OwnershipChecker,
    RetryChecker,
    UploadOnceChecker,
)

from statelog.changelog.registry import TaskChangelogRegistry
from statelog.core import change_log, upload_batcher, upload_retry
from statelog.core.retry_policy import RetryPolicy
from statelog.model import FileStateHandle, StateChangeSet, UploadResult

CORES: tuple[type[Any], ...] = (
    change_log.ChangeLog,
    upload_batcher.UploadBatcher,
    upload_retry.UploadRetry,
)


@contextmanager
def observed(observer: Watch) -> Iterator[None]:
    """Call *observer* with every step of every core, and with what happens to files."""
    originals = {core: core.handle for core in CORES}

    def watching(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def handle(self: Any, event: Any, now_ns: int) -> list[Any]:
            actions = original(self, event, now_ns)
            observer(self, event, now_ns, actions)
            return actions

        return handle

    for core, original in originals.items():
        core.handle = watching(original)
    try:
        with _observed_files(observer):
            yield
    finally:
        for core, original in originals.items():
            core.handle = original


@contextmanager
def _observed_files(observer: Watch) -> Iterator[None]:
    stop_tracking, delete = TaskChangelogRegistry.stop_tracking, TaskChangelogRegistry._delete

    def watching_stop(self: Any, handle: Any) -> None:
        if isinstance(handle, FileStateHandle):
            observer.ownership.confirm(handle.path)
        stop_tracking(self, handle)

    def watching_delete(self: Any, path: str) -> None:
        observer.delete(path)
        delete(self, path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TaskChangelogRegistry, "stop_tracking", watching_stop)
        patched.setattr(TaskChangelogRegistry, "_delete", watching_delete)
        yield


_field_names: dict[type[Any], tuple[str, ...] | None] = {}


def describe(value: Any) -> str:
    """Return *value* as text that is equal in every run, without addresses and data."""
    if isinstance(value, StateChangeSet | UploadResult):
        return f"set {value.log_id}.{value.sqn}"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}({value})"
    if isinstance(value, tuple):
        return f"({', '.join(describe(part) for part in value)})"
    if isinstance(value, int | float | str | None):
        return repr(value)
    kind = type(value)
    if kind not in _field_names:
        known = dataclasses.is_dataclass(kind)
        _field_names[kind] = tuple(f.name for f in dataclasses.fields(kind)) if known else None
    if (names := _field_names[kind]) is None:
        return kind.__name__
    return f"{kind.__name__}({', '.join([describe(getattr(value, name)) for name in names])})"


class Watch:
    """All checkers over one history."""

    def __init__(
        self,
        batch_policy: BatchPolicy,
        retry_policy: RetryPolicy,
        trace: Callable[[str], None] | None,
    ) -> None:
        self._batch_policy = batch_policy
        self._retry_policy = retry_policy
        self._trace = trace
        self._uploads: dict[int, tuple[upload_retry.UploadRetry, RetryChecker]] = {}
        self._logs: dict[int, change_log.ChangeLog] = {}
        self._upload_once = UploadOnceChecker()
        self.ownership = OwnershipChecker()
        self.steps = 0
        self.broken: list[AssertionError] = []

    def __call__(self, core: Any, event: Any, now_ns: int, actions: list[Any]) -> None:
        """Check one step of a core."""
        try:
            self._see(core, event, now_ns, actions)
        except AssertionError as error:
            self.broken.append(error)  # the caller of the core may swallow it
            raise

    def _see(self, core: Any, event: Any, now_ns: int, actions: list[Any]) -> None:
        self.steps += 1
        if self._trace is not None:
            done = ", ".join(describe(action) for action in actions)
            self._trace(f"{now_ns} {type(core).__name__} {describe(event)} -> [{done}]")
        core.check_invariants()
        if isinstance(core, upload_batcher.UploadBatcher):
            self._batch_policy.see(event, now_ns, actions)
        elif isinstance(core, upload_retry.UploadRetry):
            known = self._uploads.get(id(core))
            if known is None:  # the core is kept with its checker, so its id is not reused
                known = self._uploads[id(core)] = (core, RetryChecker(self._retry_policy))
            known[1].see(event, now_ns, actions)
        elif isinstance(core, change_log.ChangeLog):
            self._logs[id(core)] = core  # kept, so that its id is not reused
            self._upload_once.see(core, event, actions)

    def delete(self, path: str) -> None:
        try:
            self.ownership.delete(path)
        except AssertionError as error:
            self.broken.append(error)
            raise

    def uploads_with_threads(self) -> int:
        """Return the number of uploads with an attempt that has not returned."""
        return sum(upload.attempts_out > 0 for upload, _ in self._uploads.values())

    def finish(self, cancelled: bool) -> None:
        for _, checker in self._uploads.values():
            checker.finish(cancelled)
