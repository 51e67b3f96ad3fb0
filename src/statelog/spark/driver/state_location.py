"""
The state location as one run of a query sees it: is it ours, where do we go on, what is the log.

A location belongs to the query that wrote it.  A run first looks without touching anything; only
at its first micro-batch, when it knows its query id and is sure to be the rightful one, it claims
the location, which fences whoever had it before.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.coordinator import CheckpointCoordinator
from statelog.checkpoint.history import KnownCheckpoints, find_newest
from statelog.checkpoint.recorder import CheckpointRecorder
from statelog.checkpoint.restore import find_restore_point
from statelog.errors import CheckpointError, StatelogError, StoreError
from statelog.model.checkpoint import CompletedCheckpoint
from statelog.spark.driver.restart import FirstBatch, check_state_is_there, is_committed
from statelog.spark.driver.snapshot_planner import Snapshots
from statelog.spark.query.query import Query
from statelog.spark.worker.protocol import NEVER_MS
from statelog.state.schema.descriptors import OperatorStateSchema
from statelog.state.schema.evolution import evolve
from statelog.store import LocationPaths, open_store

_log = logging.getLogger("statelog.spark")


class StateLocation:
    """
    The state of one query, as of its last committed checkpoint.

    Args:
        query: The query.

    Thread: Spark's thread of the query (and the caller of `start`, before it).
    """

    def __init__(self, query: Query) -> None:
        self._query = query
        settings, groups = query.settings, query.definition.max_parallelism
        self._paths = LocationPaths()
        self._store = open_store(
            query.location, options=dict(settings.store_options), fsync=settings.fsync
        )
        recorder = CheckpointRecorder(settings.metrics)
        self.snapshots = Snapshots(settings.snapshot_policy, groups, recorder)
        self.coordinator = CheckpointCoordinator(
            self._store,
            self._paths,
            owner_id=os.urandom(16).hex(),
            max_parallelism=groups,
            options=settings.checkpoints,
            clock_ms=now_ms,
            recorder=recorder,
        )
        self.schema = query.definition.schema
        self.base: CompletedCheckpoint | None = None
        self.record: BatchRecord | None = None
        """What the checkpoint to go on from says of its micro-batch."""
        self.went_back_to: int | None = None
        self.next_due_ms: int | None = NEVER_MS
        """When the next timer is due, in the time of the time mode; None if unknown."""
        self.epoch = 0
        self._known: KnownCheckpoints = {}

    def inspect(self, query_id: str | None = None) -> None:
        """
        Check that the query can go on from what is there; takes nothing over yet.

        Args:
            query_id: Spark's id of the query, empty for a new query; None if unknown.

        Raises:
            CheckpointError: The newest checkpoint is damaged, or holds other state, or that of
                another query.
            StoreError: The location cannot be read.

        Blocks: On the store.
        """
        settings = self._query.settings
        if isinstance(settings.restore_from, int):
            self.next_due_ms = None
            return  # an explicit choice, made where the newest may be damaged
        newest = find_newest(self._store, self._paths, known=self._known).newest
        if newest is None:
            return
        self._check_is_not_unwanted(newest)
        self._check_key_groups(newest)
        record = BatchRecord.of(newest)
        self._evolve(record)
        self.next_due_ms = record.next_due_ms
        if query_id is not None and not settings.adopt:
            self._check_query(record, query_id)

    def take_over(self, first: FirstBatch) -> bool:
        """
        Claim the location, and find the checkpoint to start from.

        What can be refused is refused before the claim, so that a rightful owner is not fenced by
        a run that cannot go on.  An owner that commits between the checks and the claim is met by
        the same checks once more.

        Args:
            first: The first micro-batch of the run.

        Returns:
            Whether that micro-batch is committed already.

        Raises:
            CheckpointError: The state is another query's, or does not fit, or the micro-batch does
                not follow on it (`reason`).
            StoreError: It cannot be read or written.

        Blocks: On the store.
        """
        query, settings = self._query, self._query.settings
        wanted = self._checkpoint_to_go_back_to()
        if wanted is None:
            found = find_newest(self._store, self._paths, known=self._known).newest
        else:
            point = find_restore_point(self._store, self._paths, wanted, known=self._known)
            found = point.checkpoint
        self._check(found, first, wanted)
        self.epoch = self.coordinator.claim()
        self.base = self.coordinator.restore(wanted, known=self._known)
        self._known.clear()
        is_committed = self._check(self.base, first, wanted)
        self.next_due_ms = NEVER_MS
        if self.base is not None:
            self.record = record = BatchRecord.of(self.base)
            self.next_due_ms = record.next_due_ms
            self.went_back_to = record.went_back_to if wanted is None else wanted
            self.snapshots.begin(self.base, record.state_entries)
        _log.info(
            "state location %s: epoch %d, base checkpoint %s, delivery %s",
            query.location,
            self.epoch,
            None if self.base is None else self.base.checkpoint_id,
            settings.delivery.value,
        )
        # Left-overs of attempts that failed in earlier runs; old enough ones only.
        threading.Thread(target=self._sweep, name="statelog-sweep", daemon=True).start()
        return is_committed

    def _check(
        self, found: CompletedCheckpoint | None, first: FirstBatch, wanted: int | None
    ) -> bool:
        """Return whether *first* is committed in *found*; refuse what cannot go on from there."""
        query, settings = self._query, self._query.settings
        if found is None:
            if settings.restore_from != "empty":
                check_state_is_there(first, query.location)
            return False
        self._check_is_not_unwanted(found)
        self._check_key_groups(found)
        record = BatchRecord.of(found)
        if not isinstance(settings.restore_from, int) and not settings.adopt:
            self._check_query(record, first.query_id)
        self._evolve(record)
        went_back_to = record.went_back_to if wanted is None else wanted
        free = found.checkpoint_id == went_back_to
        return is_committed(first, found, record, query.location, free=free)

    def _checkpoint_to_go_back_to(self) -> int | None:
        """
        Return the older checkpoint that was asked for, if this is not done already.

        A query keeps its arguments over restarts; going back again at each of them would throw
        away everything committed since.
        """
        wanted = self._query.settings.restore_from
        if not isinstance(wanted, int):
            return None
        try:
            newest = find_newest(self._store, self._paths, known=self._known).newest
        except CheckpointError:  # damaged: what one goes back from
            return wanted
        done = newest is not None and BatchRecord.of(newest).went_back_to == wanted
        return None if done else wanted

    def next_checkpoint_id(self, batch_id: int) -> int:
        """Return an id that no checkpoint ever had; the batch's number where that is free."""
        return max(self.coordinator.next_checkpoint_id, batch_id)

    def advance(self, completed: CompletedCheckpoint, record: BatchRecord) -> None:
        """Go on from *completed*, which holds *record*."""
        self.base, self.record = completed, record
        self.next_due_ms = record.next_due_ms
        self.snapshots.advance(completed)

    def committed_handles(self) -> tuple[str, ...]:
        """Return the ids of the log handles that the base checkpoint itself added."""
        base = self.base
        if base is None:
            return ()
        return tuple(
            log.state_handle_id for log in base.log if log.checkpoint_id == base.checkpoint_id
        )

    def clean_up(self) -> None:
        """Delete what no retained checkpoint needs any more; a failure is only told."""
        try:
            self.coordinator.clean_up()
        except StoreError as error:  # nothing is lost: a sweep finds what stays behind
            _log.warning("could not delete what no checkpoint needs any more: %s", error)

    def _sweep(self) -> None:
        try:
            report = collect_garbage(
                self._store,
                self._paths,
                min_age=self._query.settings.checkpoints.min_age_of_orphans,
                dry_run=False,
                now=dt.datetime.now(dt.UTC),
            )
        except StatelogError as error:
            _log.warning("could not sweep %s: %s", self._query.location, error)
            return
        if report.deleted:
            _log.info("deleted %d orphans in %s", len(report.deleted), self._query.location)

    def _evolve(self, record: BatchRecord) -> None:
        if {record.time_mode, self._query.definition.time_mode} == {"processingtime", "eventtime"}:
            raise CheckpointError(
                f"{self._query.location} holds timers of the time mode {record.time_mode}, the "
                f"query has {self._query.definition.time_mode}: the same numbers would mean other times. Keep "
                "the time mode, or use another stateLocation",
                reason="incompatible",
            )
        stored = OperatorStateSchema.from_json(record.schema)
        self.schema = evolve(
            stored, self._query.definition.schema, now_ms=max(now_ms(), record.now_ms)
        )

    def _check_is_not_unwanted(self, newest: CompletedCheckpoint) -> None:
        if self._query.settings.restore_from == "empty":
            raise CheckpointError(
                f"restoreFrom='empty' was asked for, but {self._query.location} holds checkpoint "
                f"{newest.checkpoint_id}; use an empty stateLocation",
                reason="not_empty",
            )

    def _check_key_groups(self, newest: CompletedCheckpoint) -> None:
        if newest.max_parallelism != self._query.definition.max_parallelism:
            raise CheckpointError(
                f"{self._query.location} has {newest.max_parallelism} key groups, the query asks "
                f"for {self._query.definition.max_parallelism}; the number is fixed for the life of the state",
                reason="max_parallelism",
            )

    def _check_query(self, record: BatchRecord, query_id: str) -> None:
        if record.query_id != query_id:
            raise CheckpointError(
                f"{self._query.location} holds the state of query {record.query_id} (up to its "
                f"batch {record.batch_id}), not of this query {query_id or '(which is new)'}. Use its "
                "checkpointLocation, or another stateLocation, or adopt=True to go on from this "
                "state",
                reason="other_query",
            )


def now_ms() -> int:
    """Return the wall clock in milliseconds."""
    return time.time_ns() // 1_000_000
