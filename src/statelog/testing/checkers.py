"""
What must hold in every simulated history.

Safety says what never happens, liveness what happens in the end, policy that things happen for the
stated reason.  The last kind matters: a batcher that uploads each record alone, or a retry that
never retries, is safe and useless.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from statelog.core import change_log, file_ownership, upload_batcher, upload_retry
from statelog.errors import check
from statelog.model import StateChangeSet

Observer = Callable[[Any, Any, int, list[Any]], None]

CORES: tuple[type[Any], ...] = (
    change_log.ChangeLog,
    file_ownership.FileOwnership,
    upload_batcher.UploadBatcher,
    upload_retry.UploadRetry,
)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Show *observer* every step of every core: (core, event, now_ns, actions)."""
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
        yield
    finally:
        for core, original in originals.items():
            core.handle = original


def describe(value: Any) -> str:
    """Return *value* as text that is the same in every run: no addresses, no data."""
    if isinstance(value, StateChangeSet | change_log.UploadResult):
        return f"set {value.log_id}.{value.sqn}"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}({value})"
    if isinstance(value, tuple):
        return f"({', '.join(describe(each) for each in value)})"
    if dataclasses.is_dataclass(value):
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(describe(field) for field in fields)})"
    return repr(value) if isinstance(value, int | float | str | None) else type(value).__name__


class BatchPolicy:
    """
    Batches start for a reason, once, whole, in order.

    Args:
        delay_ns: Longest stay in the queue.
        threshold_bytes: Queue size that starts a batch.
        limit_bytes: Bound on admitted bytes.
        fixed_delay: Whether the idle rule is off.
    """

    def __init__(
        self, *, delay_ns: int, threshold_bytes: int, limit_bytes: int, fixed_delay: bool
    ) -> None:
        self._delay_ns = delay_ns
        self._threshold_bytes = threshold_bytes
        self._limit_bytes = limit_bytes
        self._fixed_delay = fixed_delay
        self._sizes: dict[int, int] = {}
        self._waiting: list[int] = []
        self._queue: dict[int, int] = {}
        self._running: dict[int, tuple[int, ...]] = {}
        self._timer_ns: int | None = None
        self._closed = False

    def see(self, event: upload_batcher.Event, now_ns: int, actions: list[Any]) -> None:
        """Compare one step with the rules."""
        match event:
            case upload_batcher.TaskOffered(task_id, size_bytes):
                self._sizes[task_id] = size_bytes
                self._waiting.append(task_id)
            case upload_batcher.TaskWithdrawn(task_id) if task_id in self._waiting:
                self._waiting.remove(task_id)
            case upload_batcher.BatchDone(batch_id):
                del self._running[batch_id]
            case upload_batcher.Closed():
                self._closed = True
            case _:
                pass
        for action in actions:
            self._act(action, event, now_ns)
        self._after(now_ns)

    def _act(self, action: Any, event: upload_batcher.Event, now_ns: int) -> None:
        match action:
            case upload_batcher.TaskAdmitted(task_id):
                check(not self._closed, "a task was admitted after the close")
                check(self._waiting[:1] == [task_id], "a task passed another that waits")
                self._waiting.pop(0)
                self._queue[task_id] = now_ns
            case upload_batcher.StartBatch(batch_id, task_ids):
                self._start(batch_id, task_ids, event, now_ns)
            case upload_batcher.SetTimer(at_ns):
                check(self._timer_ns is None, "a second timer for one batch")
                check(at_ns >= now_ns, "a timer in the past")
                self._timer_ns = at_ns
            case upload_batcher.RejectTasks(task_ids):
                for task_id in task_ids:
                    self._queue.pop(task_id, None)
                    if task_id in self._waiting:
                        self._waiting.remove(task_id)
                self._timer_ns = None
            case _:
                pass

    def _start(
        self, batch_id: int, task_ids: tuple[int, ...], event: upload_batcher.Event, now_ns: int
    ) -> None:
        check(tuple(self._queue) == task_ids, "a batch is not the whole queue in order")
        full = sum(self._sizes[task_id] for task_id in task_ids) >= self._threshold_bytes
        old = now_ns - self._queue[task_ids[0]] >= self._delay_ns
        idle = not self._fixed_delay and not self._running
        check(full or old or idle, "a batch started without a reason")
        self._queue.clear()
        self._timer_ns = None
        self._running[batch_id] = task_ids

    def _after(self, now_ns: int) -> None:
        queued = sum(self._sizes[task_id] for task_id in self._queue)
        running = [self._sizes[each] for ids in self._running.values() for each in ids]
        admitted = queued + sum(running)
        tasks = [size for size in running if size] + [
            self._sizes[each] for each in self._queue if self._sizes[each]
        ]
        check(admitted <= self._limit_bytes or len(tasks) == 1, "the limit was passed")
        if self._queue:
            check(queued < self._threshold_bytes, "a full queue waits")
            check(bool(self._running) or self._fixed_delay, "the uploader idles beside a queue")
            check(
                self._timer_ns is not None
                and self._timer_ns <= min(self._queue.values()) + self._delay_ns,
                "a queue without a timer in time",
            )
        if self._waiting:
            size = self._sizes[self._waiting[0]]
            fits = admitted == 0 or admitted + size <= self._limit_bytes
            check(not fits, "a task waits beside room")


class RetryChecker:
    """Attempts start for a reason, in number and time, and an upload ends once."""

    def __init__(self, policy: upload_retry.RetryPolicy) -> None:
        self._policy = policy
        self._attempts = 0
        self._rivals_due = 0
        self._earliest_ns: int | None = None
        self._ended = 0
        self._successes: list[int] = []
        self._discarded: list[int] = []
        self._winner: int | None = None
        self._hopeless = False

    def see(self, event: upload_retry.Event, now_ns: int, actions: list[Any]) -> None:
        """Compare one step with the rules."""
        match event:
            case upload_retry.UploadRequested():
                self._rivals_due = 1
            case upload_retry.AttemptSucceeded(attempt):
                self._successes.append(attempt)
            case upload_retry.AttemptFailed(attempt, _, retryable, jitter) if retryable:
                delay_ns = self._policy.delay_after_error_ns(attempt, jitter)
                if self._earliest_ns is None:
                    self._earliest_ns = now_ns + delay_ns
            case upload_retry.AttemptFailed():
                self._hopeless = True
            case _:
                pass
        for action in actions:
            self._act(action, now_ns)
        for attempt in self._successes:
            check(
                attempt == self._winner or attempt in self._discarded,
                "a success is neither winner nor discarded",
            )

    def _act(self, action: Any, now_ns: int) -> None:
        match action:
            case upload_retry.ThreadStuck():
                self._rivals_due += 1
            case upload_retry.StartAttempt():
                self._attempts += 1
                check(self._attempts <= self._policy.max_attempts, "too many attempts")
                check(not self._ended, "an attempt after the end")
                if self._rivals_due:
                    self._rivals_due -= 1
                else:
                    in_time = self._earliest_ns is not None and now_ns >= self._earliest_ns
                    check(in_time, "a retry before its delay")
                    self._earliest_ns = None
            case upload_retry.UploadWon(attempt):
                self._ended += 1
                self._winner = attempt
            case upload_retry.UploadGivenUp():
                self._ended += 1
            case upload_retry.DiscardAttempt(attempt):
                check(attempt != self._winner, "the winner was discarded")
                self._discarded.append(attempt)
            case _:
                pass
        check(self._ended <= 1, "an upload ended twice")

    def finish(self, cancelled: bool) -> None:
        """
        Look at the upload when everything is quiet.

        Args:
            cancelled: Whether the storage was closed, which ends uploads before their time.
        """
        check(self._ended == 1, "an upload never ended")
        failed = self._winner is None and not cancelled
        tried = self._attempts == self._policy.max_attempts
        check(not failed or tried or self._hopeless, "given up with attempts left")


class UploadOnceChecker:
    """A set is on its way once at a time, and never again when it has arrived."""

    def __init__(self) -> None:
        self._busy: set[tuple[int, int]] = set()

    def see(self, log: change_log.ChangeLog, event: change_log.Event, actions: list[Any]) -> None:
        """Compare one step with the rules."""
        if isinstance(event, change_log.UploadFailed):
            self._busy -= {(id(log), sqn) for sqn in event.sqns}
        for action in actions:
            if isinstance(action, change_log.StartUpload):
                started = {(id(log), each.sqn.value) for each in action.change_sets}
                check(not started & self._busy, "a set is sent that is on its way or there")
                self._busy |= started


class OwnershipChecker:
    """Files are deleted once, only by the rules, and never if a checkpoint has them."""

    def __init__(self) -> None:
        self.confirmed: set[str] = set()
        self.tracked: dict[str, int] = {}
        self.deleted: set[str] = set()

    def see(self, event: file_ownership.Event, actions: list[Any]) -> None:
        """Compare one step with the rules."""
        discarded = False
        match event:
            case file_ownership.FileTracked(path, num_sets):
                self.tracked[path] = num_sets
            case file_ownership.FileConfirmed(path):
                self.confirmed.add(path)
            case file_ownership.SetReleased(path) if path in self.tracked:
                self.tracked[path] -= 1
                check(self.tracked[path] >= 0, f"a set of {path} was released twice")
            case file_ownership.FileDiscarded(path):
                discarded = True
                self.tracked.pop(path, None)
            case _:
                pass
        for action in actions:
            check(action.path not in self.deleted, f"{action.path} is deleted twice")
            check(action.path not in self.confirmed, f"{action.path} belongs to a checkpoint")
            needed = self.tracked.get(action.path, 0)
            check(discarded or needed == 0, f"{action.path} is deleted and still needed")
            self.deleted.add(action.path)
        if isinstance(event, file_ownership.SetReleased):
            gone = self.tracked.get(event.path) == 0 and event.path not in self.confirmed
            check(not gone or event.path in self.deleted, f"{event.path} is garbage and stays")


class Watch:
    """
    All checkers over one history.

    Args:
        batch_policy: Rules of the batcher.
        retry_policy: Rules of each upload.
        story: Gets one line for each step; for people and for the trace.
    """

    def __init__(
        self,
        batch_policy: BatchPolicy,
        retry_policy: upload_retry.RetryPolicy,
        story: Callable[[str], None],
    ) -> None:
        self._batch_policy = batch_policy
        self._retry_policy = retry_policy
        self._story = story
        self._uploads: dict[int, tuple[upload_retry.UploadRetry, RetryChecker]] = {}
        self._logs: dict[int, change_log.ChangeLog] = {}
        self._upload_once = UploadOnceChecker()
        self.ownership = OwnershipChecker()
        self.steps = 0
        self.broken: list[AssertionError] = []

    def __call__(self, core: Any, event: Any, now_ns: int, actions: list[Any]) -> None:
        """See one step of a core."""
        try:
            self._see(core, event, now_ns, actions)
        except AssertionError as error:
            self.broken.append(error)  # whoever called the core may swallow it
            raise

    def _see(self, core: Any, event: Any, now_ns: int, actions: list[Any]) -> None:
        self.steps += 1
        done = ", ".join(describe(action) for action in actions)
        self._story(f"{now_ns} {type(core).__name__} {describe(event)} -> [{done}]")
        core.check_invariants()
        if isinstance(core, upload_batcher.UploadBatcher):
            self._batch_policy.see(event, now_ns, actions)
        elif isinstance(core, upload_retry.UploadRetry):
            known = self._uploads.get(id(core))
            if known is None:  # the core is kept beside its checker, so its id stays its own
                known = self._uploads[id(core)] = (core, RetryChecker(self._retry_policy))
            known[1].see(event, now_ns, actions)
        elif isinstance(core, change_log.ChangeLog):
            self._logs[id(core)] = core  # kept, so that its id stays its own
            self._upload_once.see(core, event, actions)
        elif isinstance(core, file_ownership.FileOwnership):
            self.ownership.see(event, actions)

    def finish(self, cancelled: bool) -> None:
        """Look at every upload when everything is quiet."""
        for _, checker in self._uploads.values():
            checker.finish(cancelled)
