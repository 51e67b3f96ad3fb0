"""
What-if: run a changed processor over the rows that a running query has read.

The micro-batches of the running query are run again, one by one, in a fork.  Spark repeats a
micro-batch that is in the offset log and not in the commit log.  So each entry of the running
query's offset log is put into the fork's checkpointLocation, and a query is started that runs this
one micro-batch: with the same rows, processing time and watermark.  docs/how-to/change-a-job.md
walks through it.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.edit import edit_session, newest_checkpoint
from statelog.checkpoint.history import Entries, StoredCheckpoint, read_checkpoint
from statelog.checkpoint.query_files import COMMITS, COMPACT, OFFSETS, StoredQuery
from statelog.checkpoint.retained import Tag, TagKind, delete_tag, list_tags
from statelog.checkpoint.state_stream import read_stream
from statelog.errors import CheckpointError, UsageError
from statelog.extensions.operations.fork import Fork, apply_fork
from statelog.extensions.operations.key_traces import staged_rows as values_of
from statelog.extensions.operations.position_files import batch_files, check_sources
from statelog.extensions.operations.savepoints import fork_source, query_store
from statelog.extensions.read.changes import Differences
from statelog.format.checkpoint_metadata import decode_streams
from statelog.runtime.clock import wall_clock_ms
from statelog.spark.driver.delivery import OUTPUT_SECTION
from statelog.spark.query.delivery import Delivery
from statelog.spark.rows.types import from_ipc
from statelog.spark.stream.stateful_stream import StatefulStream
from statelog.state.reader import StateReader
from statelog.state.reader.checkpoint_chain import as_of_ms
from statelog.store import (
    LocationStore,
    ObjectStore,
    open_existing_store,
    open_location,
    open_store,
)

_SHOWN: Final = 10

ONLY_BEFORE: Final = "removed"
ONLY_AFTER: Final = "added"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """
    The outcome of one micro-batch in the fork.

    Args:
        batch_id: Its number, the same as in the running query.
        input_rows: Rows that it read.
        output_rows: Rows that the changed processor yielded.
        differences: Rows that only one of the two runs has; None if the rows of the running query
            are not known.
    """

    batch_id: int
    input_rows: int
    output_rows: int
    differences: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """
    How a changed processor's output and state differ from those in a running query.

    Args:
        fork: The fork, which has the state of the changed processor after the last micro-batch.
        until: The checkpoint of the running query that was compared.
        batches: The micro-batches, ascending.
        outputs: Rows that only one of the runs has: `batch_id`, `change` ("removed": only the
            running query yielded it, "added": only the changed processor), and the columns of the
            output.
        state: By operator, the keys whose state differs, as `LocationState.changes` returns them:
            *before* is the running query.
        reproducible: Whether `current` led to the state of the running query; None without
            `current`.  If False, the processor depends on more than its rows and times, and
            differences may come from that.
    """

    fork: Fork
    until: int
    batches: tuple[BatchOutcome, ...]
    outputs: pa.Table = field(repr=False)
    state: Mapping[str, pa.Table] = field(repr=False)
    reproducible: bool | None = None

    @property
    def not_compared(self) -> tuple[int, ...]:
        """Micro-batches whose output was not compared; pass `current` to compare all of them."""
        return tuple(batch.batch_id for batch in self.batches if batch.differences is None)

    @property
    def is_same(self) -> bool:
        """Whether the compared output and state are equal."""
        return not self.outputs.num_rows and not any(keys.num_rows for keys in self.state.values())

    def __str__(self) -> str:
        first = self.batches[0].batch_id
        last = self.batches[-1].batch_id
        rows = sum(batch.input_rows for batch in self.batches)
        changes = Counter(self.outputs["change"].to_pylist() if self.outputs.num_rows else ())
        compared = len(self.batches) - len(self.not_compared)
        lines = [
            f"batches {first} to {last}, {rows:,} input rows, compared with checkpoint {self.until}",
            f"output rows: {changes[ONLY_AFTER]:,} added, {changes[ONLY_BEFORE]:,} removed "
            f"({compared} of {len(self.batches)} batches compared)",
        ]
        for operator, table in self.state.items():
            lines.append(f"keys whose state differs in {operator}: {table.num_rows:,}")
        if self.reproducible is False:
            lines.append("the current processor did not reproduce the state of the running query")
        for name, table in (("output", self.outputs), *self.state.items()):
            lines += _some_rows(name, table)
        return "\n".join(lines)


def _some_rows(name: str, table: pa.Table) -> Iterator[str]:
    """Yield lines that show the first rows of a table, or nothing if the table is empty."""
    if table.num_rows:
        yield from ("", f"{name}:")
    for row in table.slice(0, _SHOWN).to_pylist():
        texts = (f"{column}={value}" for column, value in row.items() if value is not None)
        yield "  " + "  ".join(texts)
    if table.num_rows > _SHOWN:
        yield f"  ... {table.num_rows - _SHOWN:,} more"


# The output rows that a micro-batch staged, and how the rows of two runs differ.


def staged_rows(store: ObjectStore, stored: StoredCheckpoint) -> pa.Table | None:
    """
    Return the rows that the micro-batch of a checkpoint delivered.

    None if they were not staged.
    """
    record = BatchRecord.of(stored.checkpoint)
    if record.delivery != Delivery.STAGED.value:
        return None
    section = stored.sections.get(OUTPUT_SECTION)
    where = f"checkpoint {stored.checkpoint.checkpoint_id}"
    streams: list[bytes | memoryview] = [*decode_streams(section, where=where)]
    streams += [
        read_stream(store, staged_file, what="staged rows") for staged_file in record.staged_files()
    ]
    return _joined([from_ipc(stream) for stream in streams])


def row_differences(batch_id: int, before: pa.Table, after: pa.Table) -> pa.Table:
    """
    Return the rows that only one of two tables contains; duplicates count separately.

    Returns:
        The columns `batch_id`, `change` ("removed": only in *before*, "added": only in *after*),
        and those of the tables.
    """
    old, new = ([_hashable(row) for row in values_of(table)] for table in (before, after))
    return _joined(
        [
            *_only_in(before, old, new, batch_id, ONLY_BEFORE),
            *_only_in(after, new, old, batch_id, ONLY_AFTER),
        ]
    )


def _only_in(
    table: pa.Table, keys: list[Hashable], others: list[Hashable], batch_id: int, change: str
) -> Iterator[pa.Table]:
    """Yield the rows of *table* whose *keys* occur more often in it than in the other table."""
    more = Counter(keys) - Counter(others)
    rows = []
    for row, key in enumerate(keys):
        if more[key] > 0:
            more[key] -= 1
            rows.append(row)
    if rows:
        only = table.take(pa.array(rows, pa.int64()))
        only = only.add_column(0, "change", pa.array([change] * len(rows)))
        yield only.add_column(0, "batch_id", pa.array([batch_id] * len(rows)))


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _hashable(value: object) -> Hashable:
    """Return a hashable form of a row that is equal for equal rows; NaN equals NaN."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, Mapping):
        return tuple((name, _hashable(field_value)) for name, field_value in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value if isinstance(value, Hashable) else repr(value)


def what_if(
    fork: Fork,
    stream: DataFrame,
    *,
    until: int | None = None,
    current: DataFrame | None = None,
    checkpoint_location: str | os.PathLike[str] | None = None,
    on_batch: Callable[[int, int], object] | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> WhatIf:
    """
    Run a changed query on the rows that a running query read after a fork, and compare.

    The micro-batches of the running query are repeated in the fork one by one, with their rows,
    processing times and watermarks.  The running query continues meanwhile, undisturbed: a tag
    keeps the checkpoint that is compared.  Afterwards a query can be started on the fork.

    Example:
        trial = statelog.fork(
            "s3://bucket/jobs/totals",
            "s3://bucket/trial/totals",
            checkpoint="before-release",
            checkpoint_location="s3://bucket/queries/totals",
            new_checkpoint_location="s3://bucket/trial/query",
        )
        changed = transform_with_state(
            events.groupBy("customer"), ChangedTotals(), "customer string, total double"
        )
        result = what_if(trial, changed)

    Args:
        fork: Result of `statelog.fork`, made from a checkpoint of the running query.
        stream: The changed query: the frame that `transform_with_state` returns, over the same
            sources in the same order.  Its setting stateLocation is not used.
        until: The last checkpoint of the running query to compare; None for the newest one.
        current: The query as it runs, to compare the output of all micro-batches, and to find out
            whether it leads to the same state again.  Without it only the rows that are staged in
            retained checkpoints are compared.
        checkpoint_location: The checkpointLocation of the running query; None for what its
            checkpoints record.
        on_batch: Called after each micro-batch with its number and the last one, for progress.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        UsageError: `transform_with_state` did not return *stream*, or the fork is without a query.
        CheckpointError: There are no micro-batches between, or Spark has deleted the offsets of one
            ("not_found"), or the fork has run already ("active").
        ProcessorError: The changed processor raised.
        StreamingQueryException: Spark failed.
        StoreError: A store failed.

    Blocks: For all micro-batches, about a second for each and the time of its rows.
    """
    changed = _stream(stream, "stream")
    as_it_runs = None if current is None else _stream(current, "current")
    parent = open_existing_store(fork.parent, options=storage_options)
    with _pinned(parent, until) as last, contextlib.ExitStack() as stack:
        record = BatchRecord.of(last.checkpoint)
        query = query_store(
            parent, checkpoint_location, record.checkpoint_location, storage_options
        )
        source = _Source(parent, StoredQuery(query), last, storage_options)
        run = _Run(source, fork, changed)
        unchanged = None
        if as_it_runs is not None:
            unchanged = _Run(source, stack.enter_context(_second_fork(source, fork)), as_it_runs)
        outcomes = []
        tables = []
        for batch_id in source.batches_after(fork.batch_id):
            outcome, differences = _compared(batch_id, source, run, unchanged)
            outcomes.append(outcome)
            if differences is not None and differences.num_rows:
                tables.append(differences)
            if on_batch is not None:
                on_batch(batch_id, record.batch_id)
        same = None
        if unchanged is not None:
            state = _state(parent, last, unchanged.store)
            same = not any(table.num_rows for table in state.values())
        return WhatIf(
            fork=fork,
            until=last.checkpoint.checkpoint_id,
            batches=tuple(outcomes),
            outputs=_joined(tables),
            state=_state(parent, last, run.store),
            reproducible=same,
        )


@dataclass(frozen=True, slots=True)
class _Source:
    """The running query, up to the checkpoint to compare."""

    store: LocationStore
    query: StoredQuery
    last: StoredCheckpoint
    options: Mapping[str, object] | None

    @property
    def record(self) -> BatchRecord:
        return BatchRecord.of(self.last.checkpoint)

    def batches_after(self, forked: int) -> range:
        """Return the micro-batches that follow the forked one."""
        last_batch = self.record.batch_id
        check_sources(self.query, self.record, last_batch)
        if last_batch <= forked:
            raise CheckpointError(
                f"the running query has not committed a checkpoint after the forked batch {forked}; let "
                "it run longer, or fork an older checkpoint",
                reason="not_found",
            )
        return range(forked + 1, last_batch + 1)

    def files(self, batch_id: int) -> dict[str, bytes]:
        """Return the files with which Spark planned a micro-batch."""
        entry = self.query.offsets(batch_id)
        if entry is None or entry.offsets is None:
            raise CheckpointError(
                f"{self.query.url} does not contain the offsets of batch {batch_id}; Spark keeps the "
                "offsets of the last spark.sql.streaming.minBatchesToRetain micro-batches. Fork a newer checkpoint",
                reason="not_found",
            )
        return batch_files(self.query, batch_id, entry.offsets, self.record.source_folders)

    def rows_of(self, batch_id: int) -> pa.Table | None:
        """Return the rows that the running query delivered, or None if they are unknown."""
        for checkpoint_id in reversed(self.last.checkpoint.retained):
            with contextlib.suppress(FileNotFoundError):
                stored = read_checkpoint(self.store, checkpoint_id)
                if BatchRecord.of(stored.checkpoint).batch_id == batch_id:
                    return staged_rows(self.store, stored)
        return None


class _Run:
    """Runs micro-batches in a fork."""

    def __init__(self, source: _Source, fork: Fork, stream: StatefulStream) -> None:
        if fork.query is None:
            raise UsageError(
                "the fork contains only the state: fork again with the position of the sources"
            )
        self._source = source
        self._fork = fork
        self._stream = stream
        self._checkpoint_location = fork.query.checkpoint_location
        self._query = StoredQuery(open_store(self._checkpoint_location))
        self.store = open_location(fork.location, options=source.options)
        self.store.name_parent(fork.parent)
        self.input_rows = 0

    def batch(self, batch_id: int) -> pa.Table:
        """Run one micro-batch and return its output rows."""
        planned = self._query.numbers(OFFSETS)
        if not planned or planned[-1] != batch_id - 1:
            raise CheckpointError(
                f"a query has already run on the fork {self._fork.location} (up to batch "
                f"{planned[-1] if planned else 'none'}); create a new fork",
                reason="active",
            )
        self._plan(batch_id)
        writer = self._stream.writeStream.option("checkpointLocation", self._checkpoint_location)
        writer.option("statelog.stateLocation", self._fork.location)
        writer.option("statelog.delivery", "staged")
        writer.foreachBatch(lambda rows, number: None).trigger(once=True)
        writer.start().awaitTermination()
        if self._query.numbers(COMMITS)[-1] != batch_id:
            raise CheckpointError(
                f"Spark did not run batch {batch_id} in {self._fork.location}", reason="gap"
            )
        newest = Entries(self.store).newest_stored()
        record = None if newest is None else BatchRecord.of(newest.checkpoint)
        if newest is None or record is None or record.batch_id != batch_id:
            self.input_rows = 0  # a micro-batch without effect makes no checkpoint
            return pa.table({})
        self.input_rows = record.figures.rows
        rows = staged_rows(self.store, newest)
        return pa.table({}) if rows is None else rows

    def _plan(self, batch_id: int) -> None:
        """Write a micro-batch to the offset log in the way Spark would plan it."""
        files = self._source.files(batch_id)
        logs = [name for name in files if name.endswith(COMPACT)]
        for name in logs:
            folder = name.rpartition("/")[0]
            # Spark takes the numbers of two compact files for the distance of all.
            older = (f"{folder}/{log}" for log in self._query.names(folder))
            self._query.delete(log for log in older if log != name)
        for name in (*logs, f"{OFFSETS}/{batch_id}"):
            self._query.store.put(name, files[name])


def _compared(
    batch_id: int, source: _Source, run: _Run, unchanged: _Run | None
) -> tuple[BatchOutcome, pa.Table | None]:
    """Repeat a micro-batch; return its result and, if known, the rows that differ."""
    after = run.batch(batch_id)
    before = source.rows_of(batch_id) if unchanged is None else unchanged.batch(batch_id)
    differences = None if before is None else row_differences(batch_id, before, after)
    outcome = BatchOutcome(
        batch_id=batch_id,
        input_rows=run.input_rows,
        output_rows=after.num_rows,
        differences=None if differences is None else differences.num_rows,
    )
    return outcome, differences


@contextlib.contextmanager
def _pinned(parent: LocationStore, until: int | None) -> Iterator[StoredCheckpoint]:
    """Pin a checkpoint of the running query for the duration of the comparison."""
    checkpoint_id = newest_checkpoint(parent).checkpoint_id if until is None else until
    name = f"what-if-{os.urandom(8).hex()}"
    with edit_session(parent, "what-if", checkpoint_id=checkpoint_id) as session:
        tag = session.pin(Tag(kind=TagKind.TAG, name=name, checkpoint_id=checkpoint_id))
        try:
            yield read_checkpoint(parent, checkpoint_id)
        finally:
            delete_tag(parent, tag)


@contextlib.contextmanager
def _second_fork(source: _Source, fork: Fork) -> Iterator[Fork]:
    """Fork the same checkpoint again, for the query in its current form."""
    location = f"{fork.location.rstrip('/')}-current"
    store = open_location(location, options=source.options)
    query = open_store(f"{location}-query")
    begin = fork_source(source.store, fork.checkpoint_id, lambda recorded: source.query.store)
    new = apply_fork(begin, store, query, wall_clock_ms)
    try:
        yield new
    finally:
        for location_store in (store, query):
            location_store.delete([info.path for info in location_store.list()])
        for tag in list_tags(source.store):
            if (tag.kind, tag.name) == (TagKind.FORK, new.fork_id):
                delete_tag(source.store, tag)


def _stream(frame: DataFrame, name: str) -> StatefulStream:
    if not isinstance(frame, StatefulStream):
        raise UsageError(
            f"{name} must be the frame that transform_with_state returns in a classic session, not "
            f"{type(frame).__name__}"
        )
    return frame


def _state(
    parent: LocationStore, last: StoredCheckpoint, fork: LocationStore
) -> dict[str, pa.Table]:
    """Return the keys whose state differs, by operator."""
    newest = newest_checkpoint(fork)
    states = {}
    for operator in BatchRecord.of(last.checkpoint).operators:
        name = operator.operator_id
        with (
            StateReader(parent, last.checkpoint, operator=name) as before,
            StateReader(fork, newest, operator=name) as after,
        ):
            names = [variable.name for reader in (before, after) for variable in reader.variables()]
            differences = Differences(before, after, list(dict.fromkeys(names)))
            now_ms = as_of_ms(last.checkpoint)
            states[name] = differences.table(now_ms, now_ms)
    return states
