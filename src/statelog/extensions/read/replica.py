"""
A live replica: a copy of a location's state that follows the query.

A replica holds the state as of one checkpoint, as a task does, and comes to a newer one by
replaying the log behind what it holds.  So a micro-batch costs it the changes of that micro-batch.
Key groups whose log was replaced by a snapshot since, or given up by a rewind, are restored again,
and no others.  The query is not asked anything: all is read from the location.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from statelog.arguments import instance, number, text, whole_number
from statelog.errors import (
    CheckpointError,
    ClosedError,
    ObjectNotFoundError,
    StatelogError,
    UnavailableError,
)
from statelog.extensions.read.held_state import HeldState, KeyVersion
from statelog.extensions.read.sql import run_sql
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.plain_text import facts_as_html
from statelog.runtime.clock import Clock, SystemClock, wall_clock_ms
from statelog.runtime.lock import ThreadLock
from statelog.runtime.pool import Poller
from statelog.state.cache import CatchUp
from statelog.state.reader.checkpoint_chain import ATTEMPTS, newest_after
from statelog.state.reader.state_reader import StateReader
from statelog.state.schema import StateDescriptor
from statelog.store import CachedStore, ObjectStore

_CLOSE_S: Final = 10.0
_OWN_INTERVAL_S: Final = 0.25
"""The poll interval of `wait_for` if there is no polling thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """
    How far a replica has read, and counters of what it read.

    Args:
        checkpoint_id: The checkpoint whose state it holds.
        batch_id: Number of the micro-batch that made it.
        as_of_ms: The processing time of that micro-batch, in milliseconds since 1970.
        checked_s: Seconds since this checkpoint was last known to be the newest one; what the
            query committed since is not in the replica.
        error: Why the last look for a newer checkpoint failed; None if it did not.
        checkpoints: How many checkpoints it has held, the first one included.
        replayed: Change sets read from the log, in total.
        snapshots: Snapshots read.
        reloads: How often key groups were restored again, because the log did not lead on from
            what was held.
    """

    checkpoint_id: int
    batch_id: int
    as_of_ms: int
    checked_s: float
    error: StatelogError | None
    checkpoints: int
    replayed: int
    snapshots: int
    reloads: int


class Replica:
    """
    The state of one operator, at most one micro-batch behind the query.

    Made by `LocationState.follow`.  Every answer comes from one whole checkpoint: what
    `LocationState` returns for it.  A time to live ends also while the query is idle: what has
    expired by the clock is left out, unless the caller names a time.  The state is held in memory.

    Args:
        store: Where the location is.
        operator: Name of the operator; None for the only one.
        key_groups: Which key groups to hold; None for all.
        interval_s: Seconds between two looks for a newer checkpoint, on a thread of the replica;
            None for none: then `refresh` and `wait_for` look.
        clock: Tells seconds for `status` and for waits.

    Raises:
        CheckpointNotFoundError: The location does not contain a checkpoint.
        CheckpointDamagedError: The newest checkpoint is damaged.
        UsageError: The operator is unknown, or has no such key groups.
        StoreError: The store failed.

    Blocks: In the constructor, until the newest checkpoint is restored.
    Thread: any; methods may be called concurrently.  `get`, `table` and `sql` wait while the
        changes of a checkpoint are applied, not while they are read from the store.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        operator: str | None = None,
        key_groups: KeyGroupRange | None = None,
        interval_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._operator = None if operator is None else text(operator, "operator")
        if key_groups is not None:
            instance(key_groups, "key_groups", KeyGroupRange, "a KeyGroupRange")
        self._wanted = key_groups
        self._clock = SystemClock() if clock is None else clock
        self._lock = ThreadLock()
        self._refreshing = False
        self._closed = False
        self._error: StatelogError | None = None
        self._broken: StatelogError | None = None
        self._checked_ns = 0
        self._checkpoints = self._replayed = self._snapshots = self._reloads = 0
        self._current: HeldState | None = None
        self._poller: Poller | None = None
        self.refresh()
        if interval_s is not None:
            interval_s = number(interval_s, "interval_s", low=0.001)
            self._poller = Poller(self._poll, interval_s, "statelog-replica")

    def __repr__(self) -> str:
        current = self._current
        where = "closed" if current is None else f"checkpoint {current.checkpoint_id}"
        return f"<replica of {self._store.url}, {where}>"

    def _repr_html_(self) -> str:
        current = self._current
        facts = {
            "operator": self._operator,
            "checkpoint": "closed" if current is None else current.checkpoint_id,
            "key groups": "all" if self._wanted is None else self._wanted,
        }
        return facts_as_html(f"replica of {self._store.url}", facts)

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """
        Stop following, and discard the state. Further calls do nothing.

        Blocks: Up to ten seconds, while a look for a newer checkpoint is under way.
        """
        with self._lock:
            self._closed = True
            self._current = None
            self._lock.notify_all()
        if self._poller is not None:
            self._poller.close(_CLOSE_S)

    @property
    def checkpoint(self) -> int:
        """The id of the checkpoint whose state is in memory; raises `ClosedError`."""
        return self._held().checkpoint_id

    @property
    def lag(self) -> float:
        """The seconds since this checkpoint was last known to be the newest."""
        return self.status().checked_s

    def status(self) -> ReplicaStatus:
        """Return how far the replica has read; raises `ClosedError`."""
        with self._lock:
            current = self._held()
            return ReplicaStatus(
                checkpoint_id=current.checkpoint_id,
                batch_id=current.batch_id,
                as_of_ms=current.as_of_ms,
                checked_s=(self._clock.now_ns() - self._checked_ns) / 1e9,
                error=self._error,
                checkpoints=self._checkpoints,
                replayed=self._replayed,
                snapshots=self._snapshots,
                reloads=self._reloads,
            )

    def variables(self) -> tuple[StateDescriptor, ...]:
        """Return the state variables as of the current checkpoint; raises `ClosedError`."""
        return self._held().variables()

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns of the operator; raises `ClosedError`."""
        return self._held().schema.key_schema

    def refresh(self) -> int:
        """
        Read the changes up to the newest checkpoint, and return its id.

        Without a newer one, two requests are made, at once.  After an error the state is the
        checkpoint held before, and a later call tries again.

        Raises:
            CheckpointNotFoundError: The location no longer contains a checkpoint, or the query
                deleted each checkpoint while it was read.
            CheckpointDamagedError: The newest checkpoint is damaged.
            CorruptionError: An object is damaged; nothing can be read until a refresh succeeds.
            IncompatibleFormatError: The checkpoint has a different format version.
            ClosedError: The replica is closed.
            StoreError: The store failed.

        Blocks: On the store, and while another call refreshes.
        """
        with self._turn():
            try:
                self._come_forward()
            except StatelogError as error:
                with self._lock:
                    self._error = error
                    self._lock.notify_all()
                raise
            with self._lock:
                self._error = None
                self._checked_ns = self._clock.now_ns()
                self._lock.notify_all()
                return self._held().checkpoint_id

    def wait_for(self, checkpoint_id: int, timeout_s: float = 60.0) -> int:
        """
        Wait until the replica reaches a checkpoint or a newer one, and return its id.

        Args:
            checkpoint_id: Its id.
            timeout_s: Seconds to wait at most.

        Raises:
            UnavailableError: It was not committed in time; the message has the last error.
            CheckpointError: The location no longer has a checkpoint.
            ClosedError: The replica is closed, before or meanwhile.

        Blocks: Up to *timeout_s*, and for a refresh under way.
        """
        checkpoint_id = whole_number(checkpoint_id, "checkpoint_id", low=0)
        timeout_s = number(timeout_s, "timeout_s", low=0)
        until_ns = self._clock.now_ns() + int(timeout_s * 1e9)
        while True:
            if self._poller is None:
                self._poll()
            left_s = (until_ns - self._clock.now_ns()) / 1e9
            step_s = left_s if self._poller is not None else min(left_s, _OWN_INTERVAL_S)
            with self._lock:
                if self._lock.wait_for(lambda: self._is_over(checkpoint_id), max(step_s, 0)):
                    current = self._held().checkpoint_id
                    if current >= checkpoint_id:
                        return current
                    raise self._error or ClosedError("the replica is closed")
            if self._clock.now_ns() >= until_ns:
                status = self.status()
                why = f"; the last refresh failed: {status.error}" if status.error else ""
                raise UnavailableError(
                    f"checkpoint {checkpoint_id} of {self._store.url} was not committed within "
                    f"{timeout_s:g} s; the newest checkpoint is {status.checkpoint_id}{why}",
                    checkpoint_id=status.checkpoint_id,
                )

    def _is_over(self, checkpoint: int) -> bool:
        """Return whether a wait has ended: the checkpoint was reached, or never will be."""
        if self._closed or self._current is None:
            return True
        gone = isinstance(self._error, CheckpointError) and self._error.reason == "not_found"
        return gone or self._current.checkpoint_id >= checkpoint

    def _poll(self) -> None:
        """Call `refresh`, which records errors for `status` and for waits."""
        with suppress(StatelogError):
            self.refresh()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let one call at a time refresh, reading the store without the lock."""
        with self._lock:
            self._lock.wait_for(lambda: not self._refreshing or self._closed)
            self._check_open()
            self._refreshing = True
        try:
            yield
        finally:
            with self._lock:
                self._refreshing = False
                self._lock.notify_all()

    def _come_forward(self) -> None:
        gone: ObjectNotFoundError | None = None
        for _ in range(ATTEMPTS):
            # What is read of the store for one checkpoint is kept until its changes are applied.
            fetched = CachedStore(self._store, 2**62)
            current = None if self._broken is not None else self._current
            newest = newest_after(fetched, None if current is None else current.checkpoint)
            if newest is None:
                return
            try:
                self._advance(fetched, newest)
            except ObjectNotFoundError as error:
                gone = error  # the query has cleaned up: there is a newer one
                continue
            return
        raise CheckpointError(
            f"in each of {ATTEMPTS} attempts, the query that writes to {self._store.url} deleted the newest "
            f"checkpoint before it could be read: raise its retainedCheckpoints, or check whether an "
            f"object is missing (statelog verify). The last error: {gone}",
            reason="subsumed",
        ) from gone

    def _advance(self, fetched: CachedStore, newest: CompletedCheckpoint) -> None:
        current = None if self._broken is not None else self._current
        changes = None
        if current is not None:
            changes = current.changes_to(StateReader(fetched, newest, operator=self._operator))
        if current is None or changes is None:
            # Beside the state held, which is read meanwhile.
            again = HeldState(self._store, newest, operator=self._operator, key_groups=self._wanted)
            with self._lock:
                self._check_open()
                self._reloads += self._current is not None
                self._broken = None
                self._current = again
            self._took(again.caught_up)
            return
        for path in changes.paths():
            fetched.get(path)
        with self._lock:
            self._check_open()
            try:
                progress = current.apply(changes, newest, fetched)
            except BaseException as error:
                # Some key groups are half brought forward: what was held can no longer be read.
                failed = StatelogError(f"a refresh failed: {error!r}")
                self._broken = error if isinstance(error, StatelogError) else failed
                raise
            self._reloads += bool(changes.rewritten)
        self._took(progress)

    def _took(self, progress: CatchUp) -> None:
        self._checkpoints += 1
        self._replayed += progress.replayed
        self._snapshots += progress.restored

    def get(self, variable: str, key: object, *, now_ms: int | None = None) -> Any:
        """
        Return the state of one key as of the current checkpoint, like `LocationState.get`.

        Args:
            variable: Its name; `$timers` for timers.
            key: The values of the key columns as a tuple; for one column the value alone will do.
            now_ms: What expires at or before this time is left out; None is the present time, or
                the time of the checkpoint's micro-batch if it is later.

        Raises:
            UsageError: There is no such variable, *key* has other columns or types, or its key
                group is not held.
            CorruptionError: The last refresh found an object damaged.
            ClosedError: The replica is closed.

        Blocks: While changes are applied.
        """
        (version,) = self.get_all([variable], [key], now_ms=now_ms)
        return version.value[variable]

    def get_all(
        self, variables: Sequence[str], keys: Sequence[object], *, now_ms: int | None = None
    ) -> list[KeyVersion]:
        """
        Return several variables for several keys, all as of the same checkpoint.

        Args:
            variables: Their names.
            keys: Keys, each as for `get`.
            now_ms: As for `get`.

        Returns:
            A version for each key, in the order of *keys*.  Its value is a dict from the variables
            to what `get` returns.

        Raises:
            UsageError, CorruptionError, ClosedError: As `get`.

        Blocks: As `get`; other threads wait while the keys are read.
        """
        with self._lock:
            current = self._whole()
            return current.versions(variables, keys, _time(current, now_ms))

    def table(self, variable: str, *, now_ms: int | None = None) -> pa.Table:
        """
        Return the rows of a variable as of the current checkpoint, like `LocationState.table`.

        Only key groups that changed since the last call are converted.

        Args:
            variable: Its name; `$timers` for timers.
            now_ms: As for `get`.

        Raises:
            UsageError: There is no such variable.
            CorruptionError: The last refresh found an object damaged.
            ClosedError: The replica is closed.

        Blocks: While changes are applied; other threads wait while the rows are made.
        """
        return self._tables([variable], now_ms)[variable]

    def sql(
        self, statement: str, *, allow_files: bool = False, now_ms: int | None = None
    ) -> pa.Table:
        """
        Return the result of an SQL statement over the state variables, through DuckDB.

        Each variable is a table of its name, with the columns of `table`; `timers` is one too.

        Args:
            statement: One statement in the dialect of DuckDB.
            allow_files: As for `LocationState.sql`.
            now_ms: As for `get`.

        Raises:
            UsageError: The statement is wrong, or needs *allow_files*.
            RequirementError: DuckDB is not installed: `pip install 'statelog[sql]'`.
            CorruptionError: The last refresh found an object damaged.
            ClosedError: The replica is closed.

        Blocks: As `table`, and while the statement runs.
        """
        with self._lock:
            current = self._whole()
            names = [variable.name for variable in current.variables()]
            schemas = {name: current.arrow_schema(name) for name in names}
        return run_sql(
            statement, schemas, lambda names: self._tables(names, now_ms), allow_files=allow_files
        )

    def _tables(self, names: Sequence[str], now_ms: int | None) -> Mapping[str, pa.Table]:
        """Return the rows of several variables, all as of the same checkpoint."""
        with self._lock:
            current = self._whole()
            return current.tables(variables=names, now_ms=_time(current, now_ms))

    def _whole(self) -> HeldState:
        """Return the state in memory, if it is complete."""
        current = self._held()
        if self._broken is not None:
            raise self._broken
        return current

    def _held(self) -> HeldState:
        self._check_open()
        if self._current is None:
            raise ClosedError(f"the replica of {self._store.url} is closed; follow it again")
        return self._current

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the replica of {self._store.url} is closed; follow it again")


def _time(current: HeldState, now_ms: int | None) -> int:
    """Return the time that determines what has expired."""
    return max(current.as_of_ms, wall_clock_ms()) if now_ms is None else now_ms
