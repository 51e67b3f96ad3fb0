"""
Keys moved from runs of columns into the dict tables.

All keys of a task are moved at once: hashing, searching and decoding are done for all of them
together, and the state objects then read dicts only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from statelog.state.columnar.sorted_run import RowLayout, SortedRun, one_batch
from statelog.state.heap.tables import KeyGroupState
from statelog.state.kinds import Key
from statelog.state.kinds.kind import RowNumbers


class Moved(NamedTuple):
    """
    The rows and keys of one move.

    Args:
        rows: Positions of rows, by run.
        keys: Key group and key of each.
    """

    rows: list[tuple[SortedRun, RowNumbers]]
    keys: list[tuple[int, Key]]


class _Part(NamedTuple):
    run: SortedRun
    rows: RowNumbers
    keys: Sequence[Key] | None
    """The key searched at each row; None where the row is meant whatever its key."""


def move_keys(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    runs: Mapping[int, SortedRun],
    keys: Mapping[int, Iterable[Key]],
) -> Moved:
    """
    Move keys from the runs into the dict tables; return those found.

    Args:
        layout: The columns.
        groups: The tables, by key group.
        runs: The runs, by key group.
        keys: Which keys, by key group; as tables hold them.
    """
    wanted = {kg: list(part) for kg, part in keys.items() if kg in runs}
    flat = [key for part in wanted.values() for key in part]
    if not flat:
        return Moved([], [])
    hashes = layout.hashes(layout.codec.key.encode(flat))
    parts = []
    end = 0
    for key_group, part in wanted.items():
        start, end = end, end + len(part)
        run = runs[key_group]
        rows, asked = run.candidates(key_group, hashes[start:end])
        if len(rows):
            parts.append(_Part(run, rows, [part[index] for index in asked.tolist()]))
    return _move(layout, groups, parts)


def move_rows(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    rows: Sequence[tuple[SortedRun, RowNumbers]],
) -> None:
    """Move rows, which were not moved before, into the dict tables."""
    _move(layout, groups, [_Part(run, part, None) for run, part in rows if len(part)])


def _move(layout: RowLayout, groups: Mapping[int, KeyGroupState], parts: Sequence[_Part]) -> Moved:
    moved = Moved([], [])
    if not parts:
        return moved
    taken = pa.Table.from_batches([part.run.rows.take(pa.array(part.rows)) for part in parts])
    batch = one_batch(taken)
    keys = layout.keys(batch)
    chosen: list[int] = []
    position = 0
    for part in parts:
        asked = keys[position : position + len(part.rows)] if part.keys is None else part.keys
        same = [index for index, key in enumerate(asked) if key == keys[position + index]]
        part.run.moved[part.rows[same]] = True
        moved.rows.append((part.run, part.rows[same]))
        chosen += [position + index for index in same]
        position += len(part.rows)
    if len(chosen) < len(keys):  # other keys with the same hash
        batch = batch.take(pa.array(chosen, pa.int64()))
        keys = [keys[index] for index in chosen]
    moved.keys.extend(zip(batch.column(0).to_pylist(), keys, strict=True))
    _insert(layout, groups, batch, keys)
    return moved


def _insert(
    layout: RowLayout,
    groups: Mapping[int, KeyGroupState],
    batch: pa.RecordBatch,
    keys: Sequence[Key],
) -> None:
    """Decode rows into the tables."""
    key_groups: list[int] = batch.column(0).to_pylist()
    present = dict.fromkeys(key_groups)
    for state_id, at in layout.columns.items():
        state = layout.codec.states[state_id]
        cells = state.decode_cells(batch.column(at))
        tables = {key_group: groups[key_group].tables[state_id] for key_group in present}
        state.kind.insert_cells(tables, zip(key_groups, keys, cells, strict=True))
