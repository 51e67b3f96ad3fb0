"""
The change sets of one writer, and whether each has been uploaded.

Two rules: every decision about a set is made here, and this module uses no store, thread or clock.
A set is in one of four places::

    cut ──> not_uploaded ──> uploading ──> uploaded ──> (truncated)
                                │  ▲
                                ▼  │ sent again by a later persist or flush
                              failed

Source: Flink, FsStateChangelogWriter.  Deviations, each a repair:
- a failed set is kept and sent again, so the writer stays usable after failed uploads (H10);
- truncation never moves back, and a close completes every open persist (H11);
- truncating a set that an open persist still needs fails that persist, instead of completing it
  with a handle to a file that is being deleted;
- the incremental size counts each set once, in the first snapshot that holds it (H11);
- an upload that ends after the close is released, not deleted: others may share its file (H3);
- the confirmation of a set that is uploading holds when the upload ends; Flink ignores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from statelog.errors import (
    ChangesNotAppendedError,
    ChangesTruncatedError,
    UsageError,
    WriterClosedError,
    check,
)
from statelog.model import ChangeBatch, SequenceNumber, StateChangeSet, UploadResult

# --- events: what happened ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangesCut:
    """The appended changes were cut into a set; *size_bytes* is the total size of their values."""

    batches: tuple[ChangeBatch, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PersistRequested:
    """A checkpoint requests that all changes at or after *from_sqn* become durable."""

    persist_id: int
    from_sqn: int


@dataclass(frozen=True, slots=True)
class FlushRequested:
    """The threshold was reached: upload the changes before a checkpoint asks for them."""


@dataclass(frozen=True, slots=True)
class UploadSucceeded:
    """These sets are now durable."""

    results: tuple[UploadResult, ...]


@dataclass(frozen=True, slots=True)
class UploadFailed:
    """The upload of these sets failed permanently."""

    sqns: tuple[int, ...]
    error: BaseException


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A completed checkpoint contains the sets in [from_sqn, to_sqn); some may be uploading."""

    from_sqn: int
    to_sqn: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """No checkpoint or restore needs the sets below *to_sqn*."""

    to_sqn: int


@dataclass(frozen=True, slots=True)
class Closed:
    """
    The writer was closed.

    Args:
        unwanted_from_sqn: Sets at or above it are in no checkpoint, so their files can be deleted.
            None to keep all files that a handle names.
    """

    unwanted_from_sqn: int | None = None


# --- actions: what the shell does -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartUpload:
    """Pass these sets to the scheduler as a single task."""

    change_sets: tuple[StateChangeSet, ...]


@dataclass(frozen=True, slots=True)
class CompletePersist:
    """Every set of the persist is now durable."""

    persist_id: int
    results: tuple[UploadResult, ...]
    incremental_size_bytes: int


@dataclass(frozen=True, slots=True)
class FailPersist:
    """A set of the persist can no longer become durable."""

    persist_id: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class OfferFiles:
    """A handle is about to reference the files in these results."""

    results: tuple[UploadResult, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """A checkpoint now owns the files in these results."""

    results: tuple[UploadResult, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSets:
    """The writer no longer needs these sets; a file without needed sets can be deleted."""

    results: tuple[UploadResult, ...]


Event = (
    ChangesCut
    | PersistRequested
    | FlushRequested
    | UploadSucceeded
    | UploadFailed
    | Confirmed
    | Truncated
    | Closed
)
Action = StartUpload | CompletePersist | FailPersist | OfferFiles | HandOver | ReleaseSets


@dataclass(slots=True)
class _Persist:
    """An unfinished persist of [from_sqn, to_sqn), and its results so far."""

    from_sqn: int
    to_sqn: int
    ready: dict[int, UploadResult]

    @property
    def complete(self) -> bool:
        return len(self.ready) == self.to_sqn - self.from_sqn


@dataclass(slots=True)
class _Uploaded:
    """A durable set: *offered* once a handle contains it, *confirmed* once a checkpoint owns it."""

    result: UploadResult
    offered: bool = False
    confirmed: bool = False


class ChangeLog:
    """
    The change sets of one writer, by number.

    Invariants:
      1. every number in [lowest, active) is in exactly one of not_uploaded, uploading, failed,
         uploaded; numbers outside are in none (after the close: all are empty);
      2. an open persist misses at least one set, and each set it misses is uploading, or is
         truncated and still uploading for a checkpoint that was confirmed;
      3. `pending_bytes` is the summed size of the sets in not_uploaded;
      4. lowest and active never decrease;
      5. a set that was confirmed while it is uploading is handed over when the upload ends, also if
         it was truncated meanwhile; a failed upload ends the confirmation.
    """

    def __init__(self, log_id: int) -> None:
        self._log_id = log_id
        self._active = 0
        self._lowest = 0
        self._not_uploaded: dict[int, StateChangeSet] = {}
        self._uploading: dict[int, StateChangeSet] = {}
        self._failed: dict[int, StateChangeSet] = {}
        self._uploaded: dict[int, _Uploaded] = {}
        self._confirmed_early: set[int] = set()
        self._truncated_early: set[int] = set()
        self._pending_bytes = 0
        self._persists: dict[int, _Persist] = {}
        self._closed = False

    @property
    def active_sqn(self) -> int:
        """The sequence number of the next set to be cut."""
        return self._active

    @property
    def lowest_sqn(self) -> int:
        """All sets with numbers below this one have been truncated."""
        return self._lowest

    @property
    def pending_bytes(self) -> int:
        """Bytes of values cut but not uploading, which count towards the flush threshold."""
        return self._pending_bytes

    @property
    def closed(self) -> bool:
        """Whether the log has ended."""
        return self._closed

    @property
    def open_persists(self) -> tuple[int, ...]:
        """The persists that are still waiting."""
        return tuple(self._persists)

    def check_persist(self, from_sqn: int) -> None:
        """Reject a persist that cannot succeed, before a set is cut for it."""
        if self._closed:
            raise WriterClosedError(
                f"writer {self._log_id} is closed; create a new one", log_id=self._log_id
            )
        if from_sqn < self._lowest:
            raise ChangesTruncatedError(
                f"cannot persist from {from_sqn}: the changes below {self._lowest} were truncated; take a "
                f"snapshot that covers them, and persist from {self._lowest}",
                from_sqn=from_sqn,
                truncated_to_sqn=self._lowest,
            )
        if from_sqn > self._active:
            raise ChangesNotAppendedError(
                f"cannot persist from {from_sqn}: only changes below {self._active} exist; use a number "
                "that `next_sequence_number` returned",
                from_sqn=from_sqn,
                active_sqn=self._active,
            )

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Record an event, and return the actions to perform."""
        del now_ns  # nothing here depends on time; every core object has this signature
        match event:
            case ChangesCut(batches, size_bytes):
                return self._cut(batches, size_bytes)
            case PersistRequested(persist_id, from_sqn):
                return self._persist(persist_id, from_sqn)
            case FlushRequested():
                return [] if self._closed else self._start_upload(self._lowest)
            case UploadSucceeded(results):
                return self._succeeded(results)
            case UploadFailed(sqns, error):
                return self._upload_failed(sqns, error)
            case Confirmed(from_sqn, to_sqn):
                return self._confirm(from_sqn, to_sqn)
            case Truncated(to_sqn):
                return self._truncate(to_sqn)
            case Closed(unwanted_from_sqn):
                return self._close(unwanted_from_sqn)
            case _:
                assert_never(event)

    def _cut(self, batches: tuple[ChangeBatch, ...], size_bytes: int) -> list[Action]:
        if self._closed:
            return []
        change_set = StateChangeSet(self._log_id, SequenceNumber(self._active), batches, size_bytes)
        self._not_uploaded[self._active] = change_set
        self._pending_bytes += size_bytes
        self._active += 1
        return []

    def _persist(self, persist_id: int, from_sqn: int) -> list[Action]:
        self.check_persist(from_sqn)
        # First, so that every set from *from_sqn* on is either uploading or uploaded below.
        uploads = self._start_upload(from_sqn)
        ready = {
            sqn: self._uploaded[sqn].result
            for sqn in range(from_sqn, self._active)
            if sqn in self._uploaded
        }
        persist = _Persist(from_sqn, self._active, ready)
        if persist.complete:
            return [*uploads, *self._complete(persist_id, persist)]
        # Recorded before the upload starts: a direct scheduler completes it inside the call.
        self._persists[persist_id] = persist
        return uploads

    def _start_upload(self, from_sqn: int) -> list[Action]:
        """Upload the sets that are not being uploaded; retry sets that failed."""
        sets = []
        # In the order of their numbers: a file then has the sets in the order of the appends.
        for sqn in sorted((*self._not_uploaded, *self._failed)):
            if sqn < from_sqn:
                continue
            if (waiting := self._not_uploaded.pop(sqn, None)) is not None:
                self._pending_bytes -= waiting.size_bytes
                sets.append(waiting)
            elif (failed := self._failed.pop(sqn, None)) is not None:
                sets.append(failed)
        for change_set in sets:
            self._uploading[change_set.sqn.value] = change_set
        return [StartUpload(tuple(sets))] if sets else []

    def _complete(self, persist_id: int, persist: _Persist) -> list[Action]:
        # A set counts in the first snapshot that names it; later snapshots name it again for free.
        results = tuple(persist.ready[sqn] for sqn in range(persist.from_sqn, persist.to_sqn))
        incremental = 0
        for result in results:
            entry = self._uploaded.get(result.sqn.value)
            if entry is not None and not entry.offered:
                entry.offered = True
                incremental += result.size_bytes
        return [OfferFiles(results), CompletePersist(persist_id, results, incremental)]

    def _succeeded(self, results: tuple[UploadResult, ...]) -> list[Action]:
        late: list[UploadResult] = []
        confirmed: list[UploadResult] = []
        for result in results:
            sqn = result.sqn.value
            # A checkpoint was confirmed while this set was uploading: its file changes hands now.
            is_confirmed = sqn in self._confirmed_early
            self._confirmed_early.discard(sqn)
            if is_confirmed:
                confirmed.append(result)
            if self._uploading.pop(sqn, None) is not None:
                self._uploaded[sqn] = _Uploaded(result, confirmed=is_confirmed)
            else:
                late.append(result)  # truncated or closed meanwhile
                if sqn not in self._truncated_early:
                    continue  # no persist waits for it
                self._truncated_early.discard(sqn)
            # Every open persist whose range has the set stops waiting for it; there may be several.
            for persist in self._persists.values():
                if persist.from_sqn <= sqn < persist.to_sqn:
                    persist.ready[sqn] = result
        # First: once a persist has ended, its caller may truncate.
        actions: list[Action] = [HandOver(tuple(confirmed))] if confirmed else []
        for persist_id in [key for key, persist in self._persists.items() if persist.complete]:
            actions += self._complete(persist_id, self._persists.pop(persist_id))
        if late:
            actions.append(ReleaseSets(tuple(late)))
        return actions

    def _upload_failed(self, sqns: tuple[int, ...], error: BaseException) -> list[Action]:
        # A truncated set is not sent again, but a persist of the confirmed checkpoint may wait for
        # it.
        failed = [sqn for sqn in sqns if sqn in self._truncated_early]
        self._truncated_early.difference_update(sqns)
        self._confirmed_early.difference_update(sqns)
        # The others stay in the writer: the next persist or flush sends them again.
        for sqn in sqns:
            if (change_set := self._uploading.pop(sqn, None)) is not None:
                self._failed[sqn] = change_set
                failed.append(sqn)
        return self._fail_persists(failed, error)

    def _fail_persists(self, sqns: list[int], error: BaseException) -> list[Action]:
        hit = [
            key
            for key, persist in self._persists.items()
            if any(persist.from_sqn <= sqn < persist.to_sqn for sqn in sqns)
        ]
        for key in hit:
            del self._persists[key]
        return [FailPersist(key, error) for key in hit]

    def _confirm(self, from_sqn: int, to_sqn: int) -> list[Action]:
        if from_sqn > to_sqn or to_sqn > self._active:
            raise UsageError(
                f"cannot confirm [{from_sqn}, {to_sqn}): the range is reversed or ends above the next "
                f"number, {self._active}"
            )
        confirmed = []
        # Sets below the lowest one are truncated; a late confirmation of them is ignored.
        for sqn in range(max(from_sqn, self._lowest), to_sqn):
            entry = self._uploaded.get(sqn)
            # Possible where a set was confirmed before its upload ended: `_succeeded` hands it
            # over.
            if sqn in self._uploading:
                self._confirmed_early.add(sqn)
            elif entry is not None and not entry.confirmed:
                entry.confirmed = True
                confirmed.append(entry.result)
        return [HandOver(tuple(confirmed))] if confirmed else []

    def _truncate(self, to_sqn: int) -> list[Action]:
        if to_sqn > self._active:
            raise ChangesNotAppendedError(
                f"cannot truncate to {to_sqn}: only changes below {self._active} exist; use a number that "
                "`next_sequence_number` returned",
                to_sqn=to_sqn,
                active_sqn=self._active,
            )
        confirmed = []
        released = []
        lost = []
        for sqn in range(self._lowest, to_sqn):
            if (waiting := self._not_uploaded.pop(sqn, None)) is not None:
                self._pending_bytes -= waiting.size_bytes
            self._failed.pop(sqn, None)
            if self._uploading.pop(sqn, None) is not None:
                # Its checkpoint is confirmed, so its persist must not fail: it ends with the
                # upload.
                if sqn in self._confirmed_early:
                    self._truncated_early.add(sqn)
                else:
                    lost.append(sqn)
            if (entry := self._uploaded.pop(sqn, None)) is not None:
                # The writer's own interest ends; a confirmed file stays, because its checkpoint
                # owns it.
                released.append(entry.result)
                if entry.confirmed:
                    confirmed.append(entry.result)
                else:
                    lost.append(sqn)
        self._lowest = max(self._lowest, to_sqn)
        error = ChangesTruncatedError(
            f"the changes below {to_sqn} were truncated while a persist still needed them",
            truncated_to_sqn=to_sqn,
        )
        actions = self._fail_persists(lost, error)
        if confirmed:  # again: another thread may not have handed them over yet
            actions.append(HandOver(tuple(confirmed)))
        return [*actions, ReleaseSets(tuple(released))] if released else actions

    def _close(self, unwanted_from_sqn: int | None) -> list[Action]:
        if self._closed:
            return []
        # From here on every event except a late end of an upload is ignored or refused.
        self._closed = True
        needed = []
        released = []
        for sqn in sorted(self._uploaded):
            entry = self._uploaded[sqn]
            # A handle that was returned may be in a checkpoint, so its file must survive the
            # writer.
            is_needed = entry.offered and (unwanted_from_sqn is None or sqn < unwanted_from_sqn)
            if is_needed or entry.confirmed:
                needed.append(entry.result)  # a handle names its file, so the holder owns the file
            released.append(entry.result)
        persists = list(self._persists)
        # An upload that still runs is not in `uploading` any longer, so `_succeeded` releases it.
        for places in (self._not_uploaded, self._uploading, self._failed):
            places.clear()
        self._uploaded.clear()
        self._confirmed_early.clear()
        self._truncated_early.clear()
        self._persists.clear()
        self._pending_bytes = 0
        error = WriterClosedError(
            f"writer {self._log_id} was closed before the changes were durable; append them to a "
            "new writer",
            log_id=self._log_id,
        )
        # Hand over before the release: a released file without an owner would be deleted.
        actions: list[Action] = [FailPersist(persist_id, error) for persist_id in persists]
        if needed:
            actions.append(HandOver(tuple(needed)))
        if released:
            actions.append(ReleaseSets(tuple(released)))
        return actions

    def check_invariants(self) -> None:
        """Check that all collections are consistent; used by tests."""
        places = (self._not_uploaded, self._uploading, self._failed, self._uploaded)
        numbers = sorted(sqn for place in places for sqn in place)
        expected = [] if self._closed else list(range(self._lowest, self._active))
        check(numbers == expected, f"sets {numbers} instead of {expected}")
        pending = sum(change_set.size_bytes for change_set in self._not_uploaded.values())
        check(self._pending_bytes == pending, "pending_bytes is wrong")
        for persist_id, persist in self._persists.items():
            missing = set(range(persist.from_sqn, persist.to_sqn)) - set(persist.ready)
            check(bool(missing), f"persist {persist_id} is complete but open")
            waits_for = self._uploading.keys() | self._truncated_early
            check(missing <= waits_for, f"persist {persist_id} waits for nothing")
