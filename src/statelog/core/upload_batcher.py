"""
Decide which tasks to upload together and when, and which tasks must wait.

While less than the limit is in flight the next task is admitted, whatever its size; at the limit
tasks wait in their order.  Admitted tasks form a queue, and the whole queue is uploaded as one
batch, which becomes one file:

- at once, if no upload is running (waiting for an idle uploader gains nothing);
- when it has `threshold_bytes`;
- `delay_ns` after its first task was admitted;
- when the last running upload ends.

Source: Flink, BatchingStateChangeUploadScheduler and UploadThrottle.  Deviations:
- the first and the last rule (`fixed_delay` switches them off, as in Flink, where the 10 ms delay
  is most of the latency of a small persist);
- the bytes of an upload stay in flight until its last attempt has returned, also after another
  attempt won the upload or it was given up: a store that hangs cannot fill the memory;
- waiting tasks are admitted in their order, so a large one is not delayed without bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from statelog.errors import InvalidOptionsError, check


@dataclass(frozen=True, slots=True)
class TaskOffered:
    """A caller offers a task of *size_bytes* for upload."""

    task_id: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TaskWithdrawn:
    """The caller no longer waits for the task to be admitted."""

    task_id: int


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that was set with `SetTimer` is due."""


@dataclass(frozen=True, slots=True)
class TimerLost:
    """The timer for a `SetTimer` could not be started."""


@dataclass(frozen=True, slots=True)
class BatchDone:
    """
    The upload of a batch has ended, either successfully or with an error.

    Args:
        batch_id: The batch.
        is_held: Whether running attempts still hold its bytes; `BatchReleased` follows then.
    """

    batch_id: int
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class BatchReleased:
    """The last attempt of a batch has returned, after the batch ended with `is_held`."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The scheduler was closed; no further upload may start."""


@dataclass(frozen=True, slots=True)
class TaskAdmitted:
    """The task is in flight; its caller may continue."""

    task_id: int


@dataclass(frozen=True, slots=True)
class StartBatch:
    """Upload these tasks as one file; *waited_ns* is how long the oldest has waited."""

    batch_id: int
    task_ids: tuple[int, ...]
    waited_ns: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send `TimerFired` at this time."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class SetAvailable:
    """Whether a task would be admitted has changed."""

    available: bool


@dataclass(frozen=True, slots=True)
class RejectTasks:
    """These tasks will never be uploaded, because the scheduler is closed."""

    task_ids: tuple[int, ...]


Event = TaskOffered | TaskWithdrawn | TimerFired | TimerLost | BatchDone | BatchReleased | Closed
Action = TaskAdmitted | StartBatch | SetTimer | SetAvailable | RejectTasks


class UploadBatcher:
    """
    Collects tasks until there is a reason to upload them.

    Invariants:
      1. a task is in exactly one of: waiting, queued, one running batch, one batch that has ended
         and is held by an attempt, ended;
      2. `in_flight_bytes` is the sum over queue, running and held batches, and less than the limit
         without the largest of their tasks;
      3. tasks wait only while the limit is in flight;
      4. tasks are queued only while a timer is set for them, or (without `fixed_delay`) an upload
         is running, at whose end they are uploaded.
    """

    def __init__(
        self, *, delay_ns: int, threshold_bytes: int, limit_bytes: int, fixed_delay: bool = False
    ) -> None:
        if threshold_bytes > limit_bytes:
            raise InvalidOptionsError(
                f"the batch size threshold ({threshold_bytes} bytes) exceeds the limit for bytes in "
                f"flight ({limit_bytes}), so the queue could never reach it; lower the first or "
                "raise the second"
            )
        self._delay_ns = delay_ns
        self._threshold_bytes = threshold_bytes
        self._limit_bytes = limit_bytes
        self._fixed_delay = fixed_delay
        # The places of a task, in the order in which it passes them; sizes by task.
        self._waiting: dict[int, int] = {}
        self._queued: dict[int, int] = {}
        self._queued_bytes = 0
        self._queued_since_ns = 0
        self._batches: dict[int, dict[int, int]] = {}
        self._held_batches: dict[int, dict[int, int]] = {}
        self._released_early: set[int] = set()
        self._in_flight_bytes = 0
        self._deadline_ns: int | None = None
        self._next_batch_id = 0
        self._closed = False

    @property
    def available(self) -> bool:
        """Whether a task of any size would be admitted now."""
        return not self._waiting and self._has_capacity()

    @property
    def in_flight_bytes(self) -> int:
        """Bytes admitted but not uploaded, plus bytes that attempts of ended uploads still hold."""
        return self._in_flight_bytes

    @property
    def held_batches(self) -> int:
        """Uploads that have ended while some of their attempts are still running."""
        return len(self._held_batches)

    @property
    def queue_size(self) -> int:
        """Tasks that were admitted but are not in a batch yet."""
        return len(self._queued)

    @property
    def waiting_tasks(self) -> int:
        """Tasks that wait for admission."""
        return len(self._waiting)

    def queue_age_ns(self, now_ns: int) -> int:
        """Return the age of the oldest queued task, or 0 if the queue is empty."""
        return now_ns - self._queued_since_ns if self._queued else 0

    @property
    def running_batches(self) -> int:
        """Uploads that have not ended yet."""
        return len(self._batches)

    def is_waiting(self, task_id: int) -> bool:
        """Return whether the task is still waiting for admission."""
        return task_id in self._waiting

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Record an event, and return the actions to perform."""
        was_available = self.available
        match event:
            case TaskOffered(task_id, size_bytes):
                actions = self._offer(task_id, size_bytes, now_ns)
            case TaskWithdrawn(task_id):
                self._waiting.pop(task_id, None)
                actions = self._admit(now_ns)
            case TimerFired():
                # A timer of a batch that has started already is stale, not an error.
                due = self._deadline_ns is not None and now_ns >= self._deadline_ns
                actions = self._drain(now_ns) if due else []
            case TimerLost():
                actions = self._drain(now_ns) if self._queued else []
            case BatchDone(batch_id, is_held):
                actions = self._done(batch_id, is_held, now_ns)
            case BatchReleased(batch_id):
                actions = self._release(batch_id, now_ns)
            case Closed():
                actions = self._close()
            case _:
                assert_never(event)
        if self.available != was_available:
            actions.append(SetAvailable(self.available))
        return actions

    def _offer(self, task_id: int, size_bytes: int, now_ns: int) -> list[Action]:
        if self._closed:
            return [RejectTasks((task_id,))]
        self._waiting[task_id] = size_bytes
        return self._admit(now_ns)

    def _has_capacity(self) -> bool:
        return self._in_flight_bytes < self._limit_bytes

    def _admit(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        # In their order, so that small tasks do not pass a large one for ever.
        while self._waiting and self._has_capacity():
            task_id, size_bytes = next(iter(self._waiting.items()))
            del self._waiting[task_id]
            actions.append(TaskAdmitted(task_id))
            actions += self._enqueue(task_id, size_bytes, now_ns)
        return actions

    def _enqueue(self, task_id: int, size_bytes: int, now_ns: int) -> list[Action]:
        if not self._queued:
            self._queued_since_ns = now_ns
        self._queued[task_id] = size_bytes
        self._queued_bytes += size_bytes
        self._in_flight_bytes += size_bytes
        # The reasons to upload at once; the timer and the end of an upload are the others.
        idle = not self._batches and not self._fixed_delay
        if self._delay_ns == 0 or idle or self._queued_bytes >= self._threshold_bytes:
            return self._drain(now_ns)
        # One timer for the queue, set by its first task, which has waited longest.
        if self._deadline_ns is None:
            self._deadline_ns = now_ns + self._delay_ns
            return [SetTimer(self._deadline_ns)]
        return []

    def _drain(self, now_ns: int) -> list[Action]:
        batch_id = self._next_batch_id
        self._next_batch_id = self._next_batch_id + 1
        batch = self._queued
        self._queued = {}
        self._queued_bytes = 0
        self._batches[batch_id] = batch
        # The queue is empty, so its timer no longer means anything; a late one is ignored.
        self._deadline_ns = None
        return [StartBatch(batch_id, tuple(batch), now_ns - self._queued_since_ns)]

    def _done(self, batch_id: int, is_held: bool, now_ns: int) -> list[Action]:
        batch = self._batches.pop(batch_id)
        if is_held and batch_id not in self._released_early:
            self._held_batches[batch_id] = batch
        else:
            self._released_early.discard(batch_id)
            self._in_flight_bytes -= sum(batch.values())
        # The freed bytes admit waiting tasks; these may complete a batch by themselves.
        actions = self._admit(now_ns)
        if self._queued and not self._batches and not self._fixed_delay:
            actions += self._drain(now_ns)
        return actions

    def _release(self, batch_id: int, now_ns: int) -> list[Action]:
        batch = self._held_batches.pop(batch_id, None)
        if batch is None:  # of two threads, the one with the release was first
            self._released_early.add(batch_id)
            return []
        self._in_flight_bytes -= sum(batch.values())
        return self._admit(now_ns)

    def _close(self) -> list[Action]:
        self._closed = True
        # Running batches are not among them: the shell ends their uploads.
        rejected = (*self._queued, *self._waiting)
        self._in_flight_bytes -= self._queued_bytes
        self._queued = {}
        self._queued_bytes = 0
        self._waiting = {}
        self._deadline_ns = None
        return [RejectTasks(rejected)] if rejected else []

    def check_invariants(self) -> None:
        """Check that all collections are consistent; used by tests."""
        places = [
            self._waiting,
            self._queued,
            *self._batches.values(),
            *self._held_batches.values(),
        ]
        ids = [task_id for group in places for task_id in group]
        check(len(ids) == len(set(ids)), "a task is in two places")
        admitted = [size for group in places[1:] for size in group.values()]
        check(self._in_flight_bytes == sum(admitted), "in_flight_bytes is wrong")
        check(
            self._in_flight_bytes - max(admitted, default=0) < self._limit_bytes,
            f"{self._in_flight_bytes} bytes in flight exceed {self._limit_bytes} by more than a task",
        )
        check(self._queued_bytes == sum(self._queued.values()), "queued_bytes is wrong")
        check((self._deadline_ns is None) == (not self._queued), "queue and timer disagree")
        waits = bool(self._waiting) and self._has_capacity()
        check(not waits, "a task waits although there is capacity")
