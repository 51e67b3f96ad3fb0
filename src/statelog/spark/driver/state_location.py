"""
Open, check and claim a query's state location, and delete objects it no longer needs.

A location belongs to the query that wrote it.  A run first reads it without writing.  At its first
micro-batch, when it knows its query id and has checked that the state is its own, it claims the
location, which fences the owner before.  A failure of the clean-up is logged, and ends nothing.

A snapshot that fails is logged and tried again later; its micro-batch commits all the same, because
the log has all changes.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.coordinator import CheckpointCoordinator, CheckpointRecorder
from statelog.checkpoint.history import Entries
from statelog.checkpoint.ownership import describe_newest_claim, new_owner_id
from statelog.checkpoint.restore import find_restore_point
from statelog.core.snapshot_schedule import (
    LogDistances,
    SnapshotSchedule,
)
from statelog.errors import CheckpointError, StatelogError, StoreError
from statelog.metrics import Metrics
from statelog.model import KeyGroupRange
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.options import SnapshotPolicy
from statelog.runtime.clock import RandomIds, pause, wall_clock_ms
from statelog.runtime.pool import in_background
from statelog.spark.driver.batch_times import BatchTimes
from statelog.spark.driver.restart import (
    ALL_STATE,
    FirstBatch,
    RestoredState,
    check_state_is_there,
    evolved_schema,
    is_committed,
)
from statelog.spark.query.query import Query
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.protocol import TaskAck
from statelog.store import ObjectStore, open_location

_log = logging.getLogger("statelog.spark")


class SnapshotPlanner:
    """Plans the snapshots for one run of a query."""

    def __init__(
        self, policy: SnapshotPolicy, max_parallelism: int, recorder: CheckpointRecorder
    ) -> None:
        self._policy = policy
        self._groups = max_parallelism
        self._recorder = recorder
        self._schedule = SnapshotSchedule(policy, max_parallelism)
        self._chosen: Mapping[KeyGroupRange, KeyGroupRange] = {}  # of the micro-batch that runs
        self.distances = LogDistances.of(None, max_parallelism)

    def begin(self, base: CompletedCheckpoint | None, state_entries: int) -> None:
        """Start from *base*, which contains about *state_entries* entries."""
        self.advance(base)
        handles = base.materialized if base is not None else ()
        size = sum(max(handle.handle.size_bytes, 0) for handle in handles)
        # An estimate of the bytes per entry, from the snapshots that exist.
        in_snapshots = state_entries * float((self.distances.covered >= 0).mean())
        self._schedule = SnapshotSchedule(
            self._policy,
            self._groups,
            state_entries=state_entries,
            entry_bytes=size / in_snapshots if size and in_snapshots else None,
        )

    def advance(self, base: CompletedCheckpoint | None) -> None:
        """Continue from *base*."""
        self.distances = LogDistances.of(base, self._groups)

    def choose(
        self, ranges: Sequence[KeyGroupRange], now_ms: int
    ) -> dict[KeyGroupRange, KeyGroupRange]:
        """Choose the key groups to write, for each task by its own key groups."""
        ranges_chosen: dict[KeyGroupRange, KeyGroupRange] = {}
        for chosen in self._schedule.choose(self.distances, now_ms):
            for key_groups in ranges:
                # A slice may cross the ranges of tasks; each task writes its share as an object of
                # its own.
                overlap = key_groups.intersection(chosen)
                if len(overlap):
                    ranges_chosen.setdefault(key_groups, overlap)
        self._recorder.snapshots_started(len(ranges_chosen))
        self._chosen = ranges_chosen
        return ranges_chosen

    def committed(self, acks: Sequence[TaskAck], now_ms: int) -> None:
        """Record the results of a committed micro-batch's snapshots."""
        completed = 0
        for ack in acks:
            # A task of an operator that was skipped has not counted.
            if len(ack.changes.group_entries) == len(ack.place.key_range):
                self._schedule.has_entries(ack.place.key_range, ack.changes.group_entries)
            if ack.changes.snapshot is not None:
                completed += 1
                size = max(ack.changes.snapshot.handle.size_bytes, 0)
                self._schedule.completed(ack.changes.snapshot.key_group_range, size)
        for ack in acks:
            if ack.changes.snapshot_error:
                key_groups = self._chosen[ack.place.key_range]
                delay = self._schedule.failed(key_groups, now_ms)
                _log.warning(
                    "the snapshot of key groups %s failed; the next attempt is in %d s or later; "
                    "the log contains all changes until then: %s",
                    key_groups,
                    delay // 1000,
                    ack.changes.snapshot_error,
                )
        longest = max((ack.milliseconds("snapshot") for ack in acks), default=0.0)
        self._recorder.snapshots_completed(completed, longest)
        self._recorder.snapshots_failed(len(self._chosen) - completed)
        self._chosen = {}

    def aborted(self) -> None:
        """Record that the micro-batch failed, and its snapshots with it."""
        self._recorder.snapshots_failed(len(self._chosen))
        self._chosen = {}


class StateLocation:
    """
    The state location of one query: its newest checkpoint and its claim.

    Thread: Spark's thread of the query (and the caller of `start`, before it).
    """

    def __init__(self, query: Query) -> None:
        self._query = query
        settings = query.settings
        groups = query.key_groups
        self.store = open_location(query.location, options=dict(settings.storage_options))
        self._entries = Entries(self.store)
        recorder = CheckpointRecorder(query.observers.metrics or Metrics())
        self.snapshots = SnapshotPlanner(settings.options.snapshot, groups, recorder)
        self.coordinator = CheckpointCoordinator(
            self.store,
            owner_id=new_owner_id("query"),
            max_parallelism=groups,
            options=settings.options.checkpoint,
            clock_ms=wall_clock_ms,
            recorder=recorder,
            pause=self._pause,
        )
        self._repeated_puts = 0
        self.schemas = tuple(operator.schema for operator in query.operators)
        """The state of each operator as stored, after its evolution."""
        self.state = RestoredState(len(query.operators))
        self.clean_up = LocationCleanUp(self.store, self.coordinator, settings)
        self.is_empty = False
        """Whether `inspect` found no checkpoint."""
        self.epoch: int | None = None
        """The number of the claim; None before it."""
        self.run_id = RandomIds().new_id()
        """A name of this run, with its schemas, that no other has: a new location under an old name begins
        at the same epoch."""

    def _pause(self, seconds: float) -> None:
        """Wait before repeating a put of the same name, and count the repetition."""
        self._repeated_puts += 1
        pause(seconds)

    def take_repeated_puts(self) -> int:
        """Return how many puts of claims and commits have been repeated since the last call."""
        taken = self._repeated_puts
        self._repeated_puts = 0
        return taken

    def inspect(self, query_id: str | None = None) -> None:
        """Check the stored state without claiming the location."""
        settings = self._query.settings
        if isinstance(settings.checkpoint, int):
            self.state.due_ms = [None] * len(self._query.operators)
            return  # the user names a checkpoint, maybe because the newest one is damaged
        newest = self._entries.list_again().newest()
        self.is_empty = newest is None
        if newest is None:
            return
        self._check_is_not_unwanted(newest)
        record = BatchRecord.of(newest)
        self._evolve(newest, record, record.now_ms)
        self.state.due_ms = [operator.next_due_ms for operator in record.operators]
        if query_id is not None and not settings.adopt:
            self._check_query(record, query_id)

    def take_over(self, first: FirstBatch) -> bool:
        """
        Claim the location, and restore the checkpoint from which to start.

        All checks come before the claim, so that a run that cannot continue does not fence the
        rightful owner.  They are repeated after the claim, because the owner may have committed in
        between.

        Returns:
            Whether an earlier run committed that micro-batch.
        """
        # 1. Check, without a change.
        older_id = self._checkpoint_to_go_back_to()
        if older_id is None:
            checkpoint = self._entries.list_again().newest()
        else:
            point = find_restore_point(self._entries.list_again(), older_id)
            checkpoint = point.checkpoint
        self._check(checkpoint, first, older_id)
        # 2. Claim: from here on the owner before cannot commit.
        self.epoch = self.coordinator.claim(self._entries)
        base = self.coordinator.restore(older_id)
        self._entries = Entries(self.store)
        # 3. Check again, by what the owner before may have committed in between.
        is_committed = self._check(base, first, older_id)
        self.state.restore(base, older_id)
        if self.state.record is not None:
            self.snapshots.begin(base, self.state.record.figures.state_entries)
        _log.info(
            "state location %s: epoch %d, base checkpoint %s, delivery %s",
            self.store.url,
            self.epoch,
            self.state.base_id,
            self._query.settings.delivery.value,
        )
        # 4. Delete what failed attempts of earlier runs left.
        self.clean_up.sweep_in_background()
        return is_committed

    def check_is_there(self, first: FirstBatch) -> None:
        """Check that a query without a checkpoint has not read any input yet."""
        if self._query.settings.checkpoint != "empty":
            check_state_is_there(first, self._query.location)

    def _check(
        self, checkpoint: CompletedCheckpoint | None, first: FirstBatch, older_id: int | None
    ) -> bool:
        """
        Return whether *checkpoint* committed the micro-batch *first*.

        Raise if the query cannot continue it.
        """
        query = self._query
        settings = self._query.settings
        if checkpoint is None:
            self.check_is_there(first)
            return False
        self._check_is_not_unwanted(checkpoint)
        record = BatchRecord.of(checkpoint)
        if not isinstance(settings.checkpoint, int) and not settings.adopt:
            self._check_query(record, first.query_id)
        self._evolve(checkpoint, record, first.times.now_ms)
        # After a rewind Spark plans the batch again, with any input: the positions need not match.
        went_back_to = record.went_back_to if older_id is None else older_id
        free = checkpoint.checkpoint_id == went_back_to
        return is_committed(
            first,
            checkpoint,
            record,
            query.location,
            free=free,
            newest_claim=lambda: describe_newest_claim(self.store),
        )

    def _checkpoint_to_go_back_to(self) -> int | None:
        """
        Return the older checkpoint to go back to.

        None if an earlier run went back already.

        A query keeps its arguments over restarts; going back at each of them would discard all
        later commits.
        """
        older_id = self._query.settings.checkpoint
        if not isinstance(older_id, int):
            return None
        try:
            newest = self._entries.list_again().newest()
        except CheckpointError:  # a damaged checkpoint is a reason to go back
            return older_id
        went_back = newest is not None and BatchRecord.of(newest).went_back_to == older_id
        return None if went_back else older_id

    def begin(self, times: BatchTimes) -> None:
        """
        Set the time at which a change to a time to live takes effect.

        The first commit of a run fixes it.  A micro-batch before it may have changed nothing, or
        been delivered again.
        """
        base = self.state.base
        record = self.state.record
        if base is not None and record is not None and not self.state.has_committed:
            self._evolve(base, record, times.now_ms)

    def _evolve(self, checkpoint: CompletedCheckpoint, record: BatchRecord, now_ms: int) -> None:
        """
        Check that the operators match those in *checkpoint*, and merge their schemas.

        A changed time to live counts from *now_ms*, the time of the micro-batch: a repeated
        micro-batch has the same time, which a clock would not.
        """
        query = self._query
        location = self._query.location
        if len(record.operators) != len(query.operators):
            stored_names = ", ".join(operator.operator_id for operator in record.operators)
            names = ", ".join(operator.schema.operator_id for operator in query.operators)
            raise CheckpointError(
                f"{location} contains the state of {len(record.operators)} operators ({stored_names}), but "
                f"the query has {len(query.operators)} ({names}). The number of operators is fixed "
                "for the lifetime of the state: use a different stateLocation, or run the added operator "
                "as a separate query over the output of this query",
                reason="incompatible",
            )
        self._check_key_groups(checkpoint)
        if {record.time_mode, query.time_mode} == {"processingtime", "eventtime"}:
            raise CheckpointError(
                f"{location} contains timers of the time mode {record.time_mode}, but the "
                f"query uses {query.time_mode}: the same numbers would mean different times. "
                "Keep the time mode, or use a different stateLocation",
                reason="incompatible",
            )
        has_state = bool(checkpoint.log or checkpoint.materialized)
        schemas = tuple(
            evolved_schema(
                stored,
                operator.schema,
                now_ms=max(now_ms, record.now_ms),
                drop=query.settings.drop_state if has_state else (ALL_STATE,),
                checkpoint=f"checkpoint {checkpoint.checkpoint_id} of {location}",
            )
            for stored, operator in zip(record.operators, query.operators, strict=True)
        )
        if schemas != self.schemas:
            self.schemas = schemas
            self.run_id = RandomIds().new_id()  # workers have state in the schemas before

    def _check_is_not_unwanted(self, newest: CompletedCheckpoint) -> None:
        if self._query.settings.checkpoint == "empty":
            raise CheckpointError(
                f"checkpoint='empty' was requested, but {self._query.location} contains checkpoint "
                f"{newest.checkpoint_id}; use an empty stateLocation",
                reason="not_empty",
            )

    def _check_key_groups(self, newest: CompletedCheckpoint) -> None:
        query = self._query
        if newest.max_parallelism != query.key_groups:
            asked_groups = query.source.max_parallelism
            stored = newest.max_parallelism // len(query.operators)
            raise CheckpointError(
                f"{query.location} has {stored} key groups, but the query requests {asked_groups}; the number is "
                "fixed for the lifetime of the state",
                reason="max_parallelism",
            )

    def _check_query(self, record: BatchRecord, query_id: str) -> None:
        if record.query_id != query_id:
            raise CheckpointError(
                f"{self._query.location} contains the state of query {record.query_id} (up to its "
                f"batch {record.batch_id}), not of this query {query_id or '(which is new)'}. Use its "
                "checkpointLocation, or a different stateLocation, or adopt=True to continue from this "
                "state",
                reason="other_query",
            )


_LAST_CLEAN_UP_S: Final = 10.0


class LocationCleanUp:
    """
    The clean-up during one run of a query.

    Thread: Spark's thread of the query; `finish`: any.
    """

    def __init__(
        self, store: ObjectStore, coordinator: CheckpointCoordinator, settings: QuerySettings
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._settings = settings
        self._is_finished = False

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects that no checkpoint references, or log the failure."""
        try:
            self._store.delete(paths)
        except StoreError as error:  # harmless: the next collection of orphans deletes them
            _log.warning("deletion of rows between operators failed: %s", error)

    def when_due(self) -> None:
        """Delete, in batches, objects that no retained checkpoint needs, or log the failure."""
        try:
            self._coordinator.clean_up_when_due()
        except StoreError as error:  # harmless: the next collection of orphans deletes the rest
            _log.warning("deletion of unneeded objects failed: %s", error)

    def finish(self) -> None:
        """Delete, once, all objects that no retained checkpoint needs, or log the failure."""
        if self._is_finished:
            return
        self._is_finished = True
        try:
            in_background(self._coordinator.clean_up, "statelog-last-clean-up").result(
                _LAST_CLEAN_UP_S
            )
        except (StatelogError, TimeoutError) as error:  # harmless: the next run deletes the rest
            _log.warning("deletion at the end of the query failed: %s", str(error) or "time-out")

    def sweep_in_background(self) -> None:
        """Delete old orphans of attempts that failed in earlier runs."""
        threading.Thread(target=self._sweep, name="statelog-sweep", daemon=True).start()

    def _sweep(self) -> None:
        try:
            report = collect_garbage(
                self._store,
                min_age=self._settings.options.checkpoint.min_age_of_orphans,
                apply=True,
                now=dt.datetime.now(dt.UTC),
                retention=self._settings.retention,
            )
        except StatelogError as error:
            _log.warning("deletion of orphans in %s failed: %s", self._store.url, error)
            return
        if report.deleted:
            _log.info("deleted %d orphans in %s", len(report.deleted), self._store.url)
        for release in report.outside:
            tags = f"deleted {', '.join(release.tags)} in {release.parent}"
            _log.warning("the parent of %s: %s", self._store.url, release.problem or tags)
