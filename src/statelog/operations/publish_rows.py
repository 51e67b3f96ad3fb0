"""
Which rows a published table has, and in which files they are stored.

A table consists of the snapshots of a checkpoint, as they are stored in the location, and of files with
the rows that its log changed since.  A row of a file that no longer counts is *deleted by its position*:
the kind of table says how (`Deletes`).  So a newer checkpoint costs what it changed, not the size of the
state.

`TableRows` holds the state of one checkpoint in columns, one row per key, and comes to a newer checkpoint
as a replica does: by the log after it, or by the snapshot that took the place of the log.  Rows have
what had not expired at the time of the checkpoint's micro-batch.  Every snapshot of the table is a
snapshot of the checkpoint, so that what keeps the checkpoint keeps the files of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.changelog.reader import read_logs
from statelog.checkpoint.state_stream import read_materialized
from statelog.errors import CapacityError, CorruptionError
from statelog.format.arrow_data import open_parquet
from statelog.format.arrow_limits import batches_of, joined_batches, one_batch
from statelog.model import CheckpointPosition, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.model.handles import ChangelogStateHandle
from statelog.state.cache import logs_ahead, path_of, snapshots_ahead
from statelog.state.columnar.run_set import contiguous
from statelog.state.columnar.sorted_run import RowLayout
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import is_of_schema, rows_of_groups, tables_in_schema
from statelog.state.keys.key_hash import hash_columns
from statelog.state.keys.slot_index import SlotIndex
from statelog.state.kinds.kind import RowNumbers, cell_of_element, expiry_of
from statelog.state.reader.chain import as_of_ms
from statelog.state.reader.held_state import groups_to_reload
from statelog.state.reader.joining import Mask, valid_rows
from statelog.state.reader.state_reader import StateReader, portions
from statelog.state.reader.window import LoggedOperations, Window

_NEVER: Final = np.iinfo(np.int64).max
_NO_FILE: Final = -1
_EVERY_GROUP: Final = KeyGroupRange(0, (1 << 15) - 1)
_PORTION_BYTES: Final = 32 * 1024 * 1024
"""Bytes of log that are folded together, one key group at least."""
_FILE_BYTES: Final = 256 * 1024 * 1024
"""Bytes of rows in memory that are written to one file."""
_FILES_MAX: Final = 24
"""Files with changed rows; beyond it the smaller half is merged."""
_SPARE_SLOTS: Final = 65_536

Write = Callable[[str, pa.Buffer], str]
"""Writes an object of a kind, such as "rows", under a new name, and returns how the table names it."""


@dataclass(eq=False, slots=True)
class TableFile:
    """
    A Parquet file with rows of the table.

    Args:
        rows: Its rows, in the columns of a snapshot.
        live: Which of them are rows of the table.
        first_expiry: For each row the earliest expiry of its entries, in milliseconds.
        url: Where it is stored, as `Write` returns it; "" before it is written.
        size_bytes: Its size.
        snapshot: The name of the snapshot in the location; "" for a file of changed rows.
        deleted: Which positions are stored as deleted.
    """

    rows: pa.RecordBatch
    live: Mask
    first_expiry: npt.NDArray[np.int64]
    url: str = ""
    size_bytes: int = 0
    snapshot: str = ""
    deleted: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.deleted = np.zeros(self.rows.num_rows, np.bool_)


class Deletes(Protocol):
    """How a kind of table stores which rows of its files are deleted."""

    def clear(self) -> None:
        """Forget all files: the rows begin again."""
        ...

    def settle(self, files: Mapping[int, TableFile], write: Write) -> None:
        """
        Store the positions of the rows that are not live, where they are not stored yet.

        Args:
            files: The files of the table by number, all written.
            write: See `Write`.

        Raises:
            Exception: As *write*; the call can be repeated.

        Blocks: In *write*.
        """
        ...


class TableRows:
    """
    The rows of the table of one operator, as of one checkpoint.

    Args:
        variables: The state variables that are columns of the table; None for all.
        url_of: Returns the URL of an object of the location that any reader can open; None if it is
            encrypted.
        deletes: The deleted positions of the table.

    Thread: one at a time.
    """

    def __init__(
        self,
        variables: Sequence[str] | None,
        url_of: Callable[[str], str | None],
        deletes: Deletes,
    ) -> None:
        self._variables = variables
        self._url_of = url_of
        self._deletes = deletes
        self.files: dict[int, TableFile] = {}
        self._reader: StateReader | None = None
        self._now_ms = -1

    @property
    def checkpoint_id(self) -> int | None:
        """The checkpoint; None before the first one, and after a call that failed."""
        return None if self._reader is None else self._reader.checkpoint_id

    @property
    def position(self) -> CheckpointPosition | None:
        """The position of the checkpoint; None as for `checkpoint_id`."""
        return None if self._reader is None else self._reader.checkpoint.position

    @property
    def row_count(self) -> int:
        """Number of rows of the table."""
        return sum(int(np.count_nonzero(file.live)) for file in self.files.values())

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return pa.schema([self._layout.table_schema.field(at) for at in self._columns])

    @property
    def stored_schema(self) -> pa.Schema:
        """The columns of the snapshots, which may be more."""
        return self._layout.table_schema

    # --- to a checkpoint --------------------------------------------------------------------------

    def advance(self, reader: StateReader) -> None:
        """
        Come to a checkpoint: by its log where it continues the one before, else from its snapshots.

        Args:
            reader: The reader of the checkpoint, which is closed.

        Raises:
            CheckpointError: The query deleted the checkpoint meanwhile.
            CorruptionError: An object is damaged.
            StoreError: The store failed.

        Blocks: On the store.
        """
        before, self._reader = self._reader, None
        now_ms = as_of_ms(reader.checkpoint)
        handle = reader.checkpoint.for_range(reader.key_groups)
        stale = self._stale(before, reader, handle, now_ms)
        if stale is None:
            self._reset(reader)
        else:
            self._remove(stale)
        with reader.explained():
            self._load(reader, handle)
            changed = list(self._replay(reader, handle, now_ms))
        changed += self._expire(now_ms)
        self._place_all(changed)
        self._versions = dict.fromkeys(reader.key_groups, reader.checkpoint_id)
        self._now_ms = now_ms
        self._tidy()
        reader.close()
        self._reader = reader

    def _stale(
        self,
        before: StateReader | None,
        reader: StateReader,
        handle: ChangelogStateBackendHandle,
        now_ms: int,
    ) -> Collection[int] | None:
        """Return the key groups to take from their snapshots again; None for a new beginning."""
        if (
            before is None
            or before.key_groups != reader.key_groups
            or before.schema.to_json() != reader.schema.to_json()
            or now_ms < self._now_ms  # what had expired is there again
        ):
            return None
        stale = groups_to_reload(before.checkpoint, reader.checkpoint, reader.key_groups)
        present = {file.snapshot for file in self.files.values() if file.snapshot}
        for snapshot in handle.materialized:
            # Its rows were deleted from the table, which cannot be taken back.
            if path_of(snapshot) in present and any(
                group in snapshot.key_group_range for group in stale
            ):
                return None
        return stale

    def _reset(self, reader: StateReader) -> None:
        self._codec = OperatorCodec(reader.schema)
        self._layout = RowLayout(self._codec)
        names = {self._codec.states[at].descriptor.name: at for at in self._codec.live}
        chosen = list(names) if self._variables is None else self._variables
        self._states = [at for name, at in names.items() if name in chosen]
        first = range(self._layout.first_state)
        self._columns = [*first, *(self._layout.columns[at] for at in self._states)]
        self._index = SlotIndex(self._codec.key.schema)
        self._file_of = np.empty(0, np.int64)
        self._row_of = np.empty(0, np.int64)
        self._versions = dict.fromkeys(reader.key_groups, -1)
        self.files = {}
        self._deletes.clear()
        self._numbers = 0

    def _remove(self, key_groups: Collection[int]) -> None:
        """Remove all rows of some key groups."""
        if key_groups and len(self._index):
            is_stale = np.zeros(max(_EVERY_GROUP.end, *key_groups) + 1, np.bool_)
            is_stale[list(key_groups)] = True
            self._drop(np.flatnonzero(is_stale[self._index.all_key_groups]))
        self._versions.update(dict.fromkeys(key_groups, -1))

    def _load(self, reader: StateReader, handle: ChangelogStateBackendHandle) -> None:
        """Take the snapshots of the stale key groups; as files of the table where they can be."""
        groups: dict[str, tuple[MaterializedHandle, set[int]]] = {}
        ahead = snapshots_ahead(handle, reader.key_groups, self._versions.__getitem__)
        for number, (snapshot, _, old) in enumerate(ahead):
            self._versions.update(dict.fromkeys(old, snapshot.checkpoint_id))
            path = path_of(snapshot) or f"inline {number}"
            groups.setdefault(path, (snapshot, set()))[1].update(old)
        for snapshot, stale in groups.values():
            data = read_materialized(reader.store, snapshot)
            path = path_of(snapshot)
            url = self._url_of(path) if path else None
            if url is not None and is_of_schema(self._codec, data):
                # What one array cannot hold is written again, in several files.
                with suppress(CapacityError):
                    self._take_snapshot(data, url, path, stale)
                    continue
            parts = (
                batch
                for run in contiguous(sorted(stale))
                for _, table in tables_in_schema(self._codec, data, run, self._layout.table_schema)
                for batch in batches_of(table)
            )
            self._place_all(self._publishable(part, as_of_ms(reader.checkpoint)) for part in parts)

    def _take_snapshot(self, data: memoryview, url: str, path: str, old: Collection[int]) -> None:
        """Take a snapshot as a file of the table, with the rows of some of its key groups."""
        try:
            table = rows_of_groups(data, _EVERY_GROUP).cast(self._layout.table_schema)
            row_count = open_parquet(data).metadata.num_rows
        except (pa.ArrowException, OSError, LookupError, ValueError, TypeError) as error:
            raise CorruptionError(f"snapshot {path} cannot be read: {error}", path=path) from error
        if table.num_rows != row_count:
            raise CorruptionError(f"snapshot {path} has key groups that do not exist", path=path)
        rows = one_batch(table)
        live = np.isin(rows.column(0).to_numpy(), list(old)) & self._some(rows)
        file = TableFile(rows, live, self._expiry(rows), url, len(data), path)
        self._place(file)

    def _replay(
        self, reader: StateReader, handle: ChangelogStateBackendHandle, now_ms: int
    ) -> Iterator[pa.RecordBatch]:
        """Remove the rows of all keys that the log changed; yield what they are now."""
        logs = list(logs_ahead(handle, reader.key_groups, self._versions.__getitem__))
        weights = np.zeros(reader.checkpoint.max_parallelism)
        for log, part, _ in logs:
            weights[part.start : part.end + 1] += max(log.size_bytes, 0) / len(log.key_group_range)
        ids = dict.fromkeys(log.checkpoint_id for log, _, _ in logs)
        steps = {checkpoint_id: at for at, checkpoint_id in enumerate(ids)}
        for portion in portions(weights.tolist(), reader.key_groups, _PORTION_BYTES):
            parts = [
                (log, part.intersection(portion), old)
                for log, part, old in logs
                if any(group in old for group in portion)
            ]
            if not parts:
                continue
            yield from self._changed(self._operations(reader, parts, steps), len(steps), now_ms)

    def _operations(
        self,
        reader: StateReader,
        parts: Sequence[tuple[ChangelogStateHandle, KeyGroupRange, set[int]]],
        steps: Mapping[int, int],
    ) -> LoggedOperations:
        """Return what the log did."""
        logged = LoggedOperations(self._codec)
        changes = read_logs(reader.store, [(log, part) for log, part, _ in parts])
        for (log, part, old), batches in zip(parts, changes, strict=True):
            for batch in batches:
                if not all(group in old for group in part):
                    kept = np.isin(batch.column(0).to_numpy(), [-1, *old])
                    batch = batch.filter(pa.array(kept))
                logged.add(steps[log.checkpoint_id], batch)
        return logged

    def _changed(
        self, logged: LoggedOperations, steps: int, now_ms: int
    ) -> Iterator[pa.RecordBatch]:
        all_operations = logged.operations()
        operations = {at: all_operations[at] for at in self._states if at in all_operations}
        if not operations:
            return
        width = self._layout.first_state - 1
        slots = np.unique(
            np.concatenate(
                [self._slots(each.batch.columns[:width]) for each in operations.values()]
            )
        )
        base = self._take(slots)
        self._drop(slots)
        window = Window(self._layout, base, operations, [now_ms] * steps)
        yield self._publishable(window.state_after(), now_ms)

    def _expire(self, now_ms: int) -> Iterator[pa.RecordBatch]:
        """Remove the rows in which something has expired; yield what is left of them."""
        for file in list(self.files.values()):
            due = np.flatnonzero(file.live & (file.first_expiry <= now_ms))
            if len(due):
                rows = file.rows.take(pa.array(due))
                self._drop(self._slots(rows.columns[1 : self._layout.first_state]))
                yield self._publishable(rows, now_ms)

    # --- rows -------------------------------------------------------------------------------------

    def _slots(self, keys: Sequence[pa.Array]) -> RowNumbers:
        """Return the slots of the keys that have one."""
        uniform = self._codec.key.uniform(keys)
        slots = self._index.find(uniform, hash_columns(uniform, self._codec.key.schema))
        return slots[slots >= 0]

    def _place(self, file: TableFile) -> None:
        """Add a file; its live rows are the rows of their keys."""
        rows = np.flatnonzero(file.live)
        number, self._numbers = self._numbers, self._numbers + 1
        if not len(rows):
            return
        self.files[number] = file
        live = file.rows if len(rows) == file.rows.num_rows else file.rows.take(pa.array(rows))
        keys = self._codec.key.uniform(live.columns[1 : self._layout.first_state])
        hashes = hash_columns(keys, self._codec.key.schema)
        slots = self._index.add(keys, hashes, live.column(0).to_numpy())
        if len(self._index) > len(self._file_of):
            more = np.full(max(len(self._index), 2 * len(self._file_of)) - len(self._file_of), -1)
            self._file_of = np.concatenate([self._file_of, more])
            self._row_of = np.concatenate([self._row_of, more])
        if (self._file_of[slots] != _NO_FILE).any():
            raise CorruptionError(f"a key has rows in two snapshots, one is {file.snapshot}")
        self._file_of[slots] = number
        self._row_of[slots] = rows

    def _place_all(self, parts: Iterable[pa.RecordBatch]) -> None:
        """Add files with rows that no file has."""
        for rows in _grouped(parts):
            self._place(TableFile(rows, np.ones(rows.num_rows, np.bool_), self._expiry(rows)))

    def _drop(self, slots: RowNumbers) -> None:
        """Remove the rows of some keys."""
        for number, rows in self._by_file(slots):
            self.files[number].live[rows] = False
        self._file_of[slots] = _NO_FILE

    def _take(self, slots: RowNumbers) -> pa.RecordBatch:
        """Return the rows of some keys, in any order."""
        parts = [self.files[at].rows.take(pa.array(rows)) for at, rows in self._by_file(slots)]
        empty = pa.RecordBatch.from_pylist([], schema=self._layout.table_schema)
        return joined_batches([empty, *parts], "published rows,")

    def _by_file(self, slots: RowNumbers) -> Iterator[tuple[int, RowNumbers]]:
        files, rows = self._file_of[slots], self._row_of[slots]
        order = np.argsort(files, kind="stable")
        files, rows = files[order], rows[order]
        numbers, starts = np.unique(files, return_index=True)
        ends = [*starts[1:].tolist(), len(rows)] if len(rows) else []
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            if number != _NO_FILE:
                yield number, rows[start:end]

    def _publishable(self, rows: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
        """Return rows without what has expired, and without keys that lack state."""
        columns = list(rows.columns)
        for state_id in self._states:
            state, at = self._codec.states[state_id], self._layout.columns[state_id]
            if state.expires:
                columns[at] = state.kind.live_column(columns[at], now_ms)
        live = pa.RecordBatch.from_arrays(columns, schema=self._layout.table_schema)
        some = self._some(live)
        return live if some.all() else live.filter(pa.array(some))

    def _some(self, rows: pa.RecordBatch) -> Mask:
        """Return which rows have state in a published variable."""
        some = np.zeros(rows.num_rows, np.bool_)
        for state_id in self._states:
            some |= valid_rows(rows.column(self._layout.columns[state_id]))
        return some

    def _expiry(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return for each row when its first entry expires."""
        expiring = [at for at in self._states if self._codec.states[at].expires]
        if not expiring:
            return np.broadcast_to(np.int64(_NEVER), rows.num_rows)
        first = np.full(rows.num_rows, _NEVER)
        for state_id in expiring:
            state, column = (
                self._codec.states[state_id],
                rows.column(self._layout.columns[state_id]),
            )
            if pa.types.is_list(column.type):
                times = state.kind.element_expiry(column.flatten()).fill_null(0).to_numpy()
                np.minimum.at(first, cell_of_element(column), times)
            else:
                valid = np.flatnonzero(valid_rows(column))
                first[valid] = np.minimum(first[valid], expiry_of(column)[valid])
        return first

    def _tidy(self) -> None:
        """Forget files without rows, and slots without a row once they are many."""
        self.files = {at: file for at, file in self.files.items() if file.live.any()}
        rows = self.row_count
        if len(self._index) > 2 * rows + _SPARE_SLOTS:
            slots = np.flatnonzero(self._file_of[: len(self._index)] != _NO_FILE)
            self._index = self._index.keep(slots)
            self._file_of, self._row_of = self._file_of[slots], self._row_of[slots]

    # --- files ------------------------------------------------------------------------------------

    def settle(self, write: Write) -> None:
        """
        Write what is not stored yet: changed rows, and positions of rows that no longer count.

        After an error the call can be repeated.

        Args:
            write: See `Write`.

        Raises:
            Exception: As *write*.

        Blocks: In *write*.
        """
        self._merge_files()
        for number, file in list(self.files.items()):
            if not file.url and not file.live.all():
                del self.files[number]
                self._replace([number], [file])
        for file in self.files.values():
            if not file.url:
                data = parquet(pa.Table.from_batches([file.rows.select(self._columns)]))
                file.url, file.size_bytes = write("rows", data), data.size
        self._deletes.settle(self.files, write)

    def _merge_files(self) -> None:
        """Merge the smaller half of the files of changed rows, once they are many."""
        changed = [at for at, file in self.files.items() if not file.snapshot]
        if len(changed) > _FILES_MAX:
            changed.sort(key=lambda at: int(np.count_nonzero(self.files[at].live)))
            small = changed[: len(changed) // 2]
            self._replace(small, [self.files.pop(at) for at in small])

    def _replace(self, numbers: Sequence[int], files: Sequence[TableFile]) -> None:
        """Put the live rows of files that were removed into new ones."""
        rows = [file.rows.filter(pa.array(file.live)) for file in files]
        is_gone = np.isin(self._file_of, numbers)
        self._file_of[is_gone] = _NO_FILE
        self._place_all(rows)


def parquet(table: pa.Table) -> pa.Buffer:
    """Return a table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _grouped(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of bounded size."""
    held: list[pa.RecordBatch] = []
    size = 0
    for part in parts:
        if not part.num_rows:
            continue
        if held and size + part.nbytes > _FILE_BYTES:
            yield one_batch(pa.Table.from_batches(held))
            held, size = [], 0
        held.append(part)
        size += part.nbytes
    if held:
        yield one_batch(pa.Table.from_batches(held))
