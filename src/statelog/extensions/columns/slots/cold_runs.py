"""
Store the keys that exceed the memory budget in sorted runs.

Slots are kept for the keys that were used last.  The others are rows of `SortedRun`s, in files of
the host where these are allowed, which are mapped and take no memory of the process.  A key that is
used is moved back into slots.  A file is unnamed: it belongs to one process and is deleted with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.model import KeyGroupRange
from statelog.state.columnar.run_files import RunFiles
from statelog.state.columnar.sorted_run import (
    HASH_COLUMN,
    RowLayout,
    SortedRun,
    build_run,
    group_order,
)
from statelog.state.keys.key_hash import Hashes
from statelog.state.kinds.kind import RowNumbers

_log = logging.getLogger("statelog")


class ColdRuns:
    """The sorted runs of one process, by key group."""

    def __init__(self, layout: RowLayout, files: RunFiles | None) -> None:
        self._layout = layout
        self._files = files
        self._by_group: dict[int, SortedRun] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def place(self, key_groups: KeyGroupRange, table: pa.Table) -> None:
        """Replace the cold rows of some key groups with *table*, which has snapshot columns."""
        run = build_run(self._layout, key_groups, table)
        if self._files is not None and run.rows.num_rows:
            try:
                # Written, mapped, and deleted: the mapping alone keeps the pages.
                pending = self._files.begin(run)
                try:
                    run = self._files.mapped(pending)
                finally:
                    pending.path.unlink(missing_ok=True)  # the mapping keeps its pages
            except OSError as error:
                _log.warning(
                    "cannot write state to %s (%s); this worker keeps it in memory from now on, and "
                    "no state is lost. Free space there, or set state.local-directory",
                    self._files.folder,
                    error,
                )
                self._files = None
        for key_group in key_groups:
            self._by_group[key_group] = run

    def forget(self, key_groups: Iterable[int]) -> None:
        """Remove the rows of some key groups."""
        for key_group in key_groups:
            self._by_group.pop(key_group, None)

    def live_count(self, key_group: int) -> int:
        """Return the number of cold keys of a key group."""
        run = self._by_group.get(key_group)
        return 0 if run is None else run.live_count(key_group)

    def table(self, key_groups: KeyGroupRange) -> list[pa.Table]:
        """Return the cold rows of some key groups in snapshot columns."""
        return [run.live_table(run_groups) for run, run_groups in self._runs(key_groups)]

    def take(
        self, hashes: Hashes, key_groups: npt.NDArray[np.int32]
    ) -> Iterator[tuple[pa.Table, Hashes]]:
        """
        Remove and yield the rows that may belong to given keys, with their hashes.

        A row of another key with the same hash may be among them.
        """
        if not len(hashes):
            return
        # One look-up for each key group, because each may be in another run.
        order = group_order(key_groups)
        groups, starts = np.unique(key_groups[order], return_index=True)
        for key_group, asked in zip(groups.tolist(), np.split(order, starts[1:]), strict=True):
            run = self._by_group.get(key_group)
            if run is not None:
                rows, _ = run.candidates(key_group, np.sort(hashes[asked]))
                yield from self._move(run, np.unique(rows))

    def take_due(
        self, key_groups: KeyGroupRange, column: int, until_ms: int
    ) -> Iterator[tuple[pa.Table, Hashes]]:
        """Remove and yield the rows that have a timer in *column* up to *until_ms*."""
        for run, run_groups in self._runs(key_groups):
            due = run.due_rows(column, until_ms)
            start = run.span(run_groups.start).start
            stop = run.span(run_groups.end).stop
            yield from self._move(run, due[(due >= start) & (due < stop)])

    def take_all(self, key_groups: KeyGroupRange) -> Iterator[tuple[pa.Table, Hashes]]:
        """Remove and yield all rows of some key groups."""
        for key_group in key_groups:
            run = self._by_group.pop(key_group, None)
            if run is not None:
                yield from self._move(run, run.live_rows(key_group))

    def first_timer(self, key_groups: KeyGroupRange, column: int, after_ms: int) -> int | None:
        """Return the earliest timer that remains in cold rows after `take_due`, or None."""
        times = [run.first_timer(column, after_ms) for run, _ in self._runs(key_groups)]
        return min((time for time in times if time is not None), default=None)

    def _move(self, run: SortedRun, rows: RowNumbers) -> Iterator[tuple[pa.Table, Hashes]]:
        if len(rows):
            taken = pa.Table.from_batches([run.rows.take(pa.array(rows))])
            # From here on the rows count as slots, so they must not be found in the run again.
            run.moved[rows] = True
            yield taken.drop_columns([HASH_COLUMN]), run.hashes[rows]

    def _runs(self, key_groups: KeyGroupRange) -> list[tuple[SortedRun, KeyGroupRange]]:
        """Return the runs of these key groups, each with its contiguous key groups."""
        runs: list[tuple[SortedRun, list[int]]] = []
        for key_group in key_groups:
            run = self._by_group.get(key_group)
            if run is None:
                continue
            if runs and runs[-1][0] is run and runs[-1][1][-1] == key_group - 1:
                runs[-1][1].append(key_group)
            else:
                runs.append((run, [key_group]))
        return [(run, KeyGroupRange(run_groups[0], run_groups[-1])) for run, run_groups in runs]
