"""
Collect the steps of single keys in a task, in the form of a recording.

Recordings of chosen keys and dead letters of failed keys share it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from statelog.checkpoint.attachments import Attachment
from statelog.extensions.recordings.format import Cells, Failure, TaskRecording, cells_table
from statelog.extensions.recordings.step import RECORD_COLUMN
from statelog.format.arrow_data import to_stream
from statelog.format.arrow_limits import batches_of, rows_of
from statelog.model.handles import Json
from statelog.spark.query.face import AnyProcessor
from statelog.spark.rows.formats import KeepingFormat, PandasRowFormat, RowFormat
from statelog.spark.rows.interface import KeyedInput
from statelog.spark.rows.key_order import KeptRows, KeyedRows
from statelog.spark.worker.large_input import HugeKeyInput
from statelog.spark.worker.protocol import TaskSpec
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.kinds import Key

_RECORD_FIELD: Final = pa.field(RECORD_COLUMN, pa.int32())


class RecordedRows:
    """
    The rows of recorded keys in one part of an input.

    The rows of all chosen keys are copied together, because a copy for each key would cost more
    than all else of recording.

    Attributes: `row_bytes`: average bytes of a row.
    """

    def __init__(self, source: KeyedInput, key_bytes: int) -> None:
        self.source = source
        self._key_bytes = key_bytes
        self._kept_rows = source.kept_rows if isinstance(source, KeyedRows) else None
        self.row_bytes = 0.0
        if self._kept_rows is not None and self._kept_rows.batches:
            size = sum(int(batch.nbytes) for batch in self._kept_rows.batches)
            rows = sum(batch.num_rows for batch in self._kept_rows.batches)
            self.row_bytes = size / max(rows, 1)
        self._copied: dict[tuple[int, Key], pa.Table | None] = {}

    def copy(self, chosen: Mapping[int, Iterable[Key]]) -> None:
        """Copy the rows of the given keys, which are grouped by key group."""
        rows_by_key = self._kept_rows
        if rows_by_key is None:
            return
        copies: list[tuple[int, Key, np.ndarray]] = []
        for key_group, keys in chosen.items():
            chosen_keys = set(keys)
            for position, key in enumerate(self.source.table_keys(key_group)):
                if key not in chosen_keys:
                    continue
                numbers = rows_by_key.numbers(rows_by_key.key_at(key_group, position))
                if len(numbers) * self.row_bytes > self._key_bytes:
                    self._copied[key_group, key] = None
                else:
                    copies.append((key_group, key, numbers))
        if not copies:
            return
        rows = _taken(rows_by_key, np.concatenate([numbers for _, _, numbers in copies]))
        start = 0
        for key_group, key, numbers in copies:
            self._copied[key_group, key] = rows.slice(start, len(numbers))
            start += len(numbers)

    def of(self, key_group: int, key: Key) -> pa.Table | None:
        """Return the rows of a key, which may be empty, or None if they are too large."""
        if (key_group, key) not in self._copied:
            if key not in self.source.table_keys(key_group):
                return _NO_ROWS
            if self._kept_rows is None:  # they do not fit in memory
                return self._of_disk(key_group, key)
            self.copy({key_group: [key]})  # a key that failed
        return self._copied[key_group, key]

    def _of_disk(self, key_group: int, key: Key) -> pa.Table | None:
        """Read the rows of a key from the task's file on disk, or return None."""
        if not isinstance(self.source, HugeKeyInput):
            return None
        batches: list[pa.RecordBatch] = []
        size = 0
        for batch in self.source.batches_of(key):
            size += batch.nbytes
            if size > self._key_bytes:
                return None
            batches.append(batch)
        self.row_bytes = size / max(sum(batch.num_rows for batch in batches), 1)
        rows = pa.Table.from_batches(batches)
        self._copied[key_group, key] = rows
        return rows


_NO_ROWS = pa.table({})


def _taken(rows_by_key: KeptRows, numbers: np.ndarray) -> pa.Table:
    """Return the rows with these numbers, in this order."""
    return rows_of(pa.Table.from_batches(rows_by_key.batches), numbers)


@dataclass(slots=True)
class RecordedKey:
    """
    A recorded key.

    Args:
        key_group: Its key group.
        key: As tables hold it.
        before: Its cells before the micro-batch.
        after: Its cells after it.
        lost: Why it is not recorded after all; "" if it is.
    """

    key_group: int
    key: Key
    before: Cells
    after: Cells = field(default_factory=dict)
    lost: str = ""


class Seen(Protocol):
    """The steps of several keys; see `TaskRecorder`."""

    @property
    def codec(self) -> OperatorCodec:
        """The operator's codec."""

    @property
    def keys(self) -> Sequence[RecordedKey]:
        """The keys, in the order of their numbers."""

    @property
    def rows(self) -> Sequence[tuple[int, pa.Table]]:
        """The rows of the keys, by key number."""

    @property
    def initial(self) -> Sequence[tuple[int, pa.Table]]:
        """The initial-state rows of the keys."""

    @property
    def calls(self) -> Sequence[tuple[int, str, int, int]]:
        """The calls: key number, method, timer or -1, and output rows of each."""


def state_tables(recorder: Seen, keep: Sequence[int]) -> tuple[pa.Table, pa.Table]:
    """Return the state of keys before and after, with one row per key."""
    chosen = [recorder.keys[number] for number in keep]
    groups = [recorded.key_group for recorded in chosen]
    keys = [recorded.key for recorded in chosen]
    return (
        cells_table(recorder.codec, groups, keys, [recorded.before for recorded in chosen]),
        cells_table(recorder.codec, groups, keys, [recorded.after for recorded in chosen]),
    )


def recording_of(
    recorder: Seen,
    spec: TaskSpec,
    keep: Sequence[int],
    output: pa.Table,
    dropped: dict[str, int],
    failure: Failure | None = None,
) -> TaskRecording:
    """Combine the steps of some keys into one recording."""
    numbers = {number: position for position, number in enumerate(keep)}
    before, after = state_tables(recorder, keep)
    picked: list[int] = []
    position = 0
    for number, _, _, count in recorder.calls:
        if number in numbers:
            picked += range(position, position + count)
        position += count
    rows = spec.rows
    context = spec.context
    initial = None if rows.initial is None else rows.initial.layout
    return TaskRecording(
        operator_id=recorder.codec.schema.operator_id,
        operator=spec.state.operator,
        checkpoint_id=spec.checkpoint_id,
        batch_id=context.batch_id,
        time_mode=context.time_mode,
        now_ms=context.now_ms,
        watermark_ms=context.watermark_ms,
        recorded_at_ms=time.time_ns() // 1_000_000,
        processor=processor_name(context.processor),
        source=source_of(context.processor),
        row_format="rows" if frames_of(rows.row_format) is None else "pandas",
        frames=frames_of(rows.row_format) or {},
        schema=recorder.codec.metadata_change(),
        key_positions=rows.layout.key_positions,
        first_input=rows.layout.first_input,
        initial_positions=() if initial is None else initial.key_positions,
        first_initial=0 if initial is None else initial.first_input,
        before=to_stream(before),
        after=to_stream(after) if failure is None else b"",
        input=to_stream(_numbered(recorder.rows, numbers)),
        initial=to_stream(_numbered(recorder.initial, numbers)),
        calls=[(numbers[call[0]], *call[1:]) for call in recorder.calls if call[0] in numbers],
        output=to_stream(output.take(pa.array(picked, pa.int64()))),
        failure=failure,
        dropped=dropped,
        broadcasts=_attachments_of(spec) or UNSET,
    )


def _attachments_of(spec: TaskSpec) -> tuple[Attachment, ...]:
    """Return the attachments that a task reads, which a replay also needs."""
    return tuple(
        attachment
        for part in spec.extras.values()
        if isinstance(part, tuple)
        for attachment in part
        if isinstance(attachment, Attachment)
    )


def _numbered(rows: Sequence[tuple[int, pa.Table]], numbers: dict[int, int]) -> pa.Table:
    """Add the number of the key to rows, as the first column."""
    chosen = [(numbers[number], table) for number, table in rows if number in numbers]
    if not chosen:
        return pa.Table.from_batches([], pa.schema([_RECORD_FIELD]))
    repeated = np.repeat(
        [key_number for key_number, _ in chosen], [table.num_rows for _, table in chosen]
    )
    whole = pa.Table.from_batches(batches_of(pa.concat_tables([table for _, table in chosen])))
    return whole.add_column(0, _RECORD_FIELD, pa.array(repeated, pa.int32()))


def processor_name(processor: AnyProcessor) -> str:
    """Return the name of a processor as `module:Class`."""
    kind = type(processor)
    return f"{kind.__module__}:{kind.__qualname__}"


def source_of(processor: AnyProcessor) -> str:
    """Return the file that defines a processor's class on the driver, or "" if unknown."""
    code = getattr(getattr(type(processor), "handleInputRows", None), "__code__", None)
    return str(getattr(code, "co_filename", ""))


def frames_of(row_format: RowFormat) -> dict[str, Json] | None:
    """Return the settings for frames, or None if the rows are Rows."""
    plain = row_format.plain if isinstance(row_format, KeepingFormat) else row_format
    if not isinstance(plain, PandasRowFormat):
        return None
    settings: dict[str, Json] = dataclasses.asdict(plain.settings)
    settings["columns"] = plain.columns.json()
    return settings
