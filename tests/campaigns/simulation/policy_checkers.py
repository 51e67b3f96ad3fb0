"""
Checkers of the core objects; each sees every step of one of them.

Safety rules say what must never happen; policy rules say that an action has the documented reason.
Policy matters: a batcher that uploads each record alone, or a retry that never retries, is safe and
useless.
"""

from __future__ import annotations

from collections.abc import Sequence

from statelog.core import change_log, upload_batcher, upload_retry
from statelog.core.retry_policy import RetryPolicy
from statelog.errors import check


class BatchPolicy:
    """Checks that batches start for a reason, once, whole, in order."""

    def __init__(
        self, *, delay_ns: int, threshold_bytes: int, limit_bytes: int, fixed_delay: bool
    ) -> None:
        self.delay_ns = delay_ns
        self.threshold_bytes = threshold_bytes
        self.limit_bytes = limit_bytes
        self.fixed_delay = fixed_delay
        self._sizes: dict[int, int] = {}
        self._waiting: list[int] = []
        self._queue: dict[int, int] = {}
        self._running: dict[int, tuple[int, ...]] = {}
        self._held: dict[int, tuple[int, ...]] = {}
        self._timer_ns: int | None = None
        self._closed = False

    def see(self, event: upload_batcher.Event, now_ns: int, actions: Sequence[object]) -> None:
        match event:
            case upload_batcher.TaskOffered(task_id, size_bytes):
                self._sizes[task_id] = size_bytes
                self._waiting.append(task_id)
            case upload_batcher.TaskWithdrawn(task_id) if task_id in self._waiting:
                self._waiting.remove(task_id)
            case upload_batcher.BatchDone(batch_id, held):
                task_ids = self._running.pop(batch_id)
                if held:
                    self._held[batch_id] = task_ids
            case upload_batcher.BatchReleased(batch_id):
                check(batch_id in self._held, "a batch is released that no attempt holds")
                del self._held[batch_id]
            case upload_batcher.Closed():
                self._closed = True
            case _:
                pass
        for action in actions:
            self._act(action, event, now_ns)
        self._after(now_ns)

    def _act(self, action: object, event: upload_batcher.Event, now_ns: int) -> None:
        match action:
            case upload_batcher.TaskAdmitted(task_id):
                check(not self._closed, "a task was admitted after the close")
                check(self._waiting[:1] == [task_id], "a task was admitted before an earlier one")
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
        full = sum(self._sizes[task_id] for task_id in task_ids) >= self.threshold_bytes
        old = now_ns - self._queue[task_ids[0]] >= self.delay_ns
        idle = not self.fixed_delay and not self._running
        check(full or old or idle, "a batch started without a reason")
        self._queue.clear()
        self._timer_ns = None
        self._running[batch_id] = task_ids

    def _after(self, now_ns: int) -> None:
        queued = sum(self._sizes[task_id] for task_id in self._queue)
        uploads = (*self._running.values(), *self._held.values())
        running = [self._sizes[number] for ids in uploads for number in ids]
        admitted = queued + sum(running)
        largest = max([*running, *(self._sizes[task_id] for task_id in self._queue)], default=0)
        check(admitted - largest < self.limit_bytes, "the limit was passed by more than a task")
        if self._queue:
            check(queued < self.threshold_bytes, "a full queue waits")
            check(bool(self._running) or self.fixed_delay, "the uploader idles beside a queue")
            check(
                self._timer_ns is not None
                and self._timer_ns <= min(self._queue.values()) + self.delay_ns,
                "a queue without a timer in time",
            )
        has_capacity = admitted < self.limit_bytes
        check(not (self._waiting and has_capacity), "a task waits although there is capacity")


class RetryChecker:
    """
    Checks that attempts start for a reason, within their limit, and that an upload ends once.

    Also checks the count of threads that attempts hold, and the report of the last return.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._attempts = 0
        self._hedges_due = 0
        self._earliest_ns: int | None = None
        self._ended = 0
        self._successes: list[int] = []
        self._discarded: list[int] = []
        self._winner: int | None = None
        self._hopeless = False
        self._out: set[int] = set()
        self._owed = False

    def see(self, event: upload_retry.Event, now_ns: int, actions: Sequence[object]) -> None:
        match event:
            case upload_retry.UploadRequested():
                self._hedges_due = 1
            case upload_retry.AttemptStarted(attempt):
                self._out.add(attempt)
            case upload_retry.AttemptSucceeded(attempt):
                self._out.discard(attempt)
                self._successes.append(attempt)
            case upload_retry.AttemptFailed(attempt, _, retryable, jitter) if retryable:
                self._out.discard(attempt)
                delay_ns = self._policy.delay_after_error_ns(attempt, jitter)
                if self._earliest_ns is None:
                    self._earliest_ns = now_ns + delay_ns
            case upload_retry.AttemptFailed(attempt):
                self._out.discard(attempt)
                self._hopeless = True
            case upload_retry.TimerFired(threads_hang=True):
                self._hopeless = True
            case _:
                pass
        for action in actions:
            self._act(action, now_ns)
        check(
            not self._owed or bool(self._out), "no attempt holds a thread, and the bytes are held"
        )
        for attempt in self._successes:
            check(
                attempt == self._winner or attempt in self._discarded,
                "a success is neither winner nor discarded",
            )

    def _act(self, action: object, now_ns: int) -> None:
        match action:
            case upload_retry.ThreadStuck():
                self._hedges_due += 1
            case upload_retry.StartAttempt():
                self._attempts += 1
                check(self._attempts <= self._policy.max_attempts, "too many attempts")
                check(not self._ended, "an attempt after the end")
                if self._hedges_due:
                    self._hedges_due -= 1
                else:
                    in_time = self._earliest_ns is not None and now_ns >= self._earliest_ns
                    check(in_time, "a retry before its delay")
                    self._earliest_ns = None
            case upload_retry.UploadWon(attempt, _, attempts_out):
                self._ended += 1
                self._winner = attempt
                self._end(attempts_out)
            case upload_retry.UploadGivenUp(_, _, attempts_out):
                self._ended += 1
                self._end(attempts_out)
            case upload_retry.UploadReleased():
                check(self._owed and not self._out, "released while an attempt is out")
                self._owed = False
            case upload_retry.DiscardAttempt(attempt):
                check(attempt != self._winner, "the winner was discarded")
                self._discarded.append(attempt)
            case _:
                pass
        check(self._ended <= 1, "an upload ended twice")

    def _end(self, attempts_out: int) -> None:
        check(attempts_out == len(self._out), "attempts that hold a thread are not counted")
        self._owed = attempts_out > 0

    def finish(self, cancelled: bool) -> None:
        """Check the upload after the end of all events."""
        check(self._ended == 1, "an upload never ended")
        failed = self._winner is None and not cancelled
        tried = self._attempts == self._policy.max_attempts
        check(not failed or tried or self._hopeless, "given up with attempts left")


class UploadOnceChecker:
    """Checks that a set has one upload at a time, and none after a success."""

    def __init__(self) -> None:
        self._busy: set[tuple[int, int]] = set()

    def see(
        self, log: change_log.ChangeLog, event: change_log.Event, actions: Sequence[object]
    ) -> None:
        if isinstance(event, change_log.UploadFailed):
            self._busy -= {(id(log), sqn) for sqn in event.sqns}
        for action in actions:
            if isinstance(action, change_log.StartUpload):
                started = {(id(log), change_set.sqn.value) for change_set in action.change_sets}
                check(not started & self._busy, "a set is sent that is uploading or uploaded")
                self._busy |= started


class OwnershipChecker:
    """Checks that files are deleted once, and never while a checkpoint owns them."""

    def __init__(self) -> None:
        self.confirmed: set[str] = set()
        self.deleted: set[str] = set()

    def confirm(self, path: str) -> None:
        self.confirmed.add(path)

    def delete(self, path: str) -> None:
        check(path not in self.deleted, f"{path} is deleted twice")
        check(path not in self.confirmed, f"{path} belongs to a checkpoint")
        self.deleted.add(path)
