"""
Encode the recordings of tasks as bytes, and the state of some keys as columns.

A file holds the recordings of some tasks of one micro-batch, or of one key that failed::

    file := "SLRC"  version:1  codec:1  0:2  length:4  crc32c:4  body
    body := msgpack list of TaskRecording, compressed by zstd (codec 1) or not (codec 0); the
            checksum is that of the body as stored

Integers are big-endian; *length* is that of the list once uncompressed.  Tables are Arrow IPC
streams.  State has one row per key, in the layout of a snapshot: `key_group`, `key.<name>`, then
one column for each state variable.  Format: docs/reference/formats/state.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from statelog.checkpoint.attachments import Attachment
from statelog.format.arrow_data import read_stream_table
from statelog.format.arrow_limits import one_array
from statelog.format.buffers import Buffer, decode_msgpack
from statelog.format.sealed_file import damaged_file, seal, unseal
from statelog.model.handles import JsonObject
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import KEY_GROUP_COLUMN
from statelog.state.heap import KeyGroupState, Overlay
from statelog.state.kinds import Key
from statelog.state.schema import OperatorStateSchema

RECORDING: Final = "recording"
DEAD_LETTERS: Final = "dead_letters"
"""
The kinds of the attachments with recordings.

What the setting `record` asked for, and dead letters.
"""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """
    The error for a key whose processing failed.

    Args:
        method: The processor's method, or "" where a value of its state did not fit.
        error: Qualified name of the exception's class.
        message: Its text.
        lines: The processor's traceback.
    """

    method: str
    error: str
    message: str
    lines: str = ""


class TaskRecording(msgspec.Struct, frozen=True, kw_only=True):
    """
    A task's recording of an operator in one micro-batch, with one row per key.

    Args:
        operator_id: Name of the operator; *operator* is its index in the query.
        checkpoint_id: The checkpoint of the micro-batch; of a failure, the one it would have made.
        batch_id, time_mode, now_ms, watermark_ms: The micro-batch, see `BatchContext`.
        recorded_at_ms: Milliseconds since 1970.
        processor: `module:Class` of the processor; *source* is the file of its class.
        row_format: "rows" or "pandas".
        frames: The settings of frames, where the row format is "pandas".
        schema: JSON of the operator's state schema.
        key_positions, first_input: The layout of the columns of *input*; *initial_positions* and
            *first_initial* are the layout of *initial*.
        before, after: State by key, as `cells_table`; no *after* in a failure.
        input, initial: Input rows, and rows of initial state, with the number of their key in a
            first column.
        calls: (key, method, timer or -1, output rows) of each call, in order.
        output: The rows that the calls yielded, in order.
        failure: Why the key failed, or None.
        dropped: Number of keys that were not recorded, by reason.
        broadcasts: The versions of broadcast tables that the micro-batch saw; left out without any.
    """

    operator_id: str
    operator: int
    checkpoint_id: int
    batch_id: int
    time_mode: str
    now_ms: int
    watermark_ms: int
    recorded_at_ms: int
    processor: str
    source: str
    row_format: str
    frames: JsonObject
    schema: bytes
    key_positions: tuple[int, ...]
    first_input: int
    initial_positions: tuple[int, ...]
    first_initial: int
    before: bytes
    after: bytes
    input: bytes
    initial: bytes
    calls: list[tuple[int, str, int, int]]
    output: bytes
    failure: Failure | None = None
    dropped: dict[str, int] = {}
    broadcasts: tuple[Attachment, ...] | UnsetType = UNSET

    def state_schema(self) -> OperatorStateSchema:
        """Decode the operator's state schema; raise `CorruptionError` if it is invalid."""
        return OperatorStateSchema.from_bytes(self.schema)

    def key_count(self) -> int:
        """Return the number of recorded keys."""
        count: int = from_stream(self.before).num_rows
        return count


_decoder: Final = msgspec.msgpack.Decoder(list[TaskRecording])


def encode_file(recordings: Sequence[bytes]) -> bytes:
    """Encode a file with the recordings of several tasks."""
    return seal(msgspec.msgpack.encode([msgspec.Raw(recording) for recording in recordings]))


def encode_recording(recording: TaskRecording) -> bytes:
    """Encode one recording as msgpack."""
    return msgspec.msgpack.encode(recording)


def decode_file(data: Buffer, *, where: str = "") -> list[TaskRecording]:
    """Decode the recordings in a file."""
    raw = unseal(data, where=where)
    try:
        return decode_msgpack(raw, _decoder)
    except msgspec.DecodeError as error:
        raise damaged_file(where, str(error)) from error


def from_stream(data: bytes) -> pa.Table:
    """Read and validate the table in an Arrow IPC stream."""
    try:
        return read_stream_table(data)
    except (pa.ArrowException, OSError) as error:
        raise damaged_file("", str(error)) from error


@dataclass(frozen=True, slots=True)
class RecordedParts:
    """
    Encoded recordings, oldest first, which are the contents of an attachment.

    Args:
        parts: The recordings.
        bytes_max: Up to this many bytes, uncompressed, they are joined with later ones.
    """

    parts: tuple[bytes, ...]
    bytes_max: int = 0

    def joined(self, skip: int, later: RecordedParts) -> RecordedParts | None:
        """Return these recordings followed by later ones, or None if they are too large."""
        every = self.parts[skip:] + later.parts
        return replace(self, parts=every) if sum(map(len, every)) <= self.bytes_max else None

    def encode(self) -> bytes:
        """Return the file with the recordings."""
        return encode_file(self.parts)


Cells: TypeAlias = dict[int, Any]
"""State id -> cell of one key; a variable without state is left out."""


def cells_of(group: KeyGroupState, key: Key) -> Cells:
    """Return the cells of *key* from the tables of its key group."""
    return {state_id: table[key] for state_id, table in enumerate(group.tables) if key in table}


def cells_after(cells: Cells, overlay: Overlay, key: Key, group: KeyGroupState) -> Cells:
    """
    Return the cells of a key after its deltas are applied.

    *cells* and *overlay* stay as they are.
    """
    after = dict(cells)
    for state_id, deltas in enumerate(overlay):
        if key not in deltas:
            continue
        rules = group.kinds[state_id].rules
        table = rules.new_table()
        if state_id in cells:
            rules.insert_cells({0: table}, [(0, key, cells[state_id])])
        merged = rules.merge(table, {key: deltas[key]})
        after.pop(state_id, None)
        if key in merged:
            after[state_id] = merged[key]
    return after


def entry_count(cells: Cells) -> int:
    """Return the number of entries in cells: list elements, map entries, timers and values."""
    return sum(len(cell) for cell in cells.values())


def cells_table(
    codec: OperatorCodec, key_groups: Sequence[int], keys: Sequence[Key], cells: Sequence[Cells]
) -> pa.Table:
    """Return the cells of some keys as a table."""
    arrays = [pa.array(key_groups, pa.int32()), *codec.key.encode(keys)]
    names = [KEY_GROUP_COLUMN, *(f"key.{name}" for name in codec.schema.key_schema.names)]
    for state_id in codec.live:
        state = codec.states[state_id]
        arrays.append(state.encode_cells([cell.get(state_id) for cell in cells]))
        names.append(state.descriptor.name)
    return pa.Table.from_arrays(arrays, names=names)


def cells_in(codec: OperatorCodec, schema: bytes, table: pa.Table) -> list[Cells]:
    """Return the cells in each row of a table from `cells_table`."""
    written = codec.written_by(schema)
    by_row: list[Cells] = [{} for _ in range(table.num_rows)]
    for state, state_id in zip(written.codecs, written.present_ids, strict=True):
        if state is None or state.descriptor.name not in table.column_names:
            continue
        column = one_array(table.column(state.descriptor.name))
        for cells, cell in zip(by_row, state.decode_cells(column), strict=True):
            if cell:
                cells[state_id] = cell
    return by_row
