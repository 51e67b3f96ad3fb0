"""
The Row flavour: rows in, the user's processor key by key, rows out.

Source: PySpark's transformWithState: for each key `handleInputRows` once; then every timer that is
due, in the order of time; a processor is initialized once per task and closed at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from statelog.errors import ProcessorError, UsageError
from statelog.model import KeyGroupRange
from statelog.spark.handle import TaskHandle
from statelog.spark.outputs import RowOutput
from statelog.spark.spec import TaskSpec
from statelog.spark.types import row_factory
from statelog.state.api import Cursor, Timers
from statelog.state.keyed_state import KeyedState
from statelog.state.schema import TIMERS_NAME
from statelog.state.tables import Key, Overlay, nothing

_BY_TIME = itemgetter(0)


class RowRun:
    """
    One run of a processor over the keys of one task.

    Args:
        spec: What to do.
        state: The state, brought to the base checkpoint.
        key_group_range: The task's key groups.
    """

    def __init__(self, spec: TaskSpec, state: KeyedState, key_group_range: KeyGroupRange) -> None:
        self._spec = spec
        self._state = state
        self._range = key_group_range
        self._codec = state.codec
        self._keys = state.codec.key
        self._cursor = Cursor(spec.now_ms)
        self._timers_id: int | None = None
        self._timers: Timers | None = None
        if spec.time_mode != "none":
            self._timers_id = self._codec.schema.state_id(TIMERS_NAME)
            timers_codec = self._codec.states[self._timers_id].value
            self._timers = Timers(self._cursor, self._timers_id, timers_codec)
        self._times = TimerValues(spec.now_ms, -1)
        self._grouped: dict[int, dict[Key, list[Any]]] = {}
        self._shown_keys: dict[Key, Key] = {}
        self.overlays: dict[int, Overlay] = {}
        self.output = RowOutput(spec.output, spec.batch_id)
        self.row_count = 0
        self.key_count = 0

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Group the input by key group and key; arrival order within a key is kept."""
        spec = self._spec
        plain = self._keys.is_plain
        grouped = self._grouped
        make = None
        for batch in batches:
            if make is None:
                make = row_factory(batch.schema.names[spec.first_input :])
            columns = [column.to_pylist() for column in batch.columns]
            self.row_count += batch.num_rows
            inputs = zip(*columns[spec.first_input :], strict=True)
            keys: Iterable[Key] = zip(*(columns[at] for at in spec.key_positions), strict=True)
            if not plain:
                keys = self._freeze(keys)
            for key_group, key, row in zip(columns[0], keys, map(make, inputs), strict=True):
                try:
                    grouped[key_group][key].append(row)
                except KeyError:
                    grouped.setdefault(key_group, {}).setdefault(key, []).append(row)

    def _freeze(self, keys: Iterable[Key]) -> Iterator[Key]:
        for key in keys:
            frozen = self._keys.freeze(key)
            self._shown_keys.setdefault(frozen, key)
            yield frozen

    def process(self) -> None:
        """
        Run the processor over all keys, then over the timers that are due.

        Raises:
            ProcessorError: It failed; the message names the key and the batch.
        """
        processor = self._spec.processor
        handle = TaskHandle(self._cursor, self._codec, self._timers, self._drop)
        try:
            processor.init(handle)
            handle.initialized()
        except Exception as error:
            raise self._failed("init", None, error) from error
        for key_group in sorted(self._grouped):
            self._enter(key_group)
            self._process_group(self._grouped[key_group])
        if self._timers_id is not None:
            self._fire_timers(self._timers_id)
        self._cursor.leave()
        try:
            processor.close()
        except Exception as error:
            raise self._failed("close", None, error) from error

    def _process_group(self, keys: dict[Key, list[Any]]) -> None:
        handle_rows = self._spec.processor.handleInputRows
        cursor, times, shown = self._cursor, self._times, self._shown_keys
        rows_out = self.output.rows
        plain = self._keys.is_plain
        key: Key = ()
        try:
            for key, rows in keys.items():
                cursor.key = key
                produced = handle_rows(key if plain else shown[key], iter(rows), times)
                if produced is not None:
                    rows_out.extend(produced)
        except Exception as error:
            raise self._failed("handleInputRows", key, error) from error
        self.key_count += len(keys)

    def _overlay(self, key_group: int) -> Overlay:
        overlay = self.overlays.get(key_group)
        if overlay is None:
            overlay = self.overlays[key_group] = [{} for _ in self._codec.states]
        return overlay

    def _enter(self, key_group: int) -> None:
        self._cursor.enter(self._state.groups[key_group], self._overlay(key_group))

    def _fire_timers(self, timers_id: int) -> None:
        until = self._spec.now_ms
        due = []
        for key_group in self._range:
            overlay = self.overlays.get(key_group)
            changed = overlay[timers_id] if overlay is not None else {}
            for time, key in self._state.groups[key_group].timers_due(timers_id, until):
                if key not in changed:
                    due.append((time, key_group, key))
            for key, times in changed.items():
                due += [(time, key_group, key) for time in times if time <= until]
        due.sort(key=_BY_TIME)
        for time, key_group, key in due:
            self._enter(key_group)
            self._cursor.key = key
            self._fire(time, key)

    def _fire(self, time: int, key: Key) -> None:
        timers = self._timers
        if timers is None or time not in timers.times():
            return  # a timer that fired before it deleted this one
        try:
            produced = self._spec.processor.handleExpiredTimer(
                self._keys.thaw(key), self._times, ExpiredTimerInfo(time)
            )
            if produced is not None:
                self.output.rows.extend(produced)
        except Exception as error:
            raise self._failed("handleExpiredTimer", key, error) from error
        timers.delete(time)

    def _drop(self, state_id: int) -> None:
        """Remove a variable of every key of the task."""
        kind = self._codec.kinds[state_id]
        for key_group in self._range:
            table = self._state.groups[key_group].tables[state_id]
            if table:
                deltas = self._overlay(key_group)[state_id]
                for key in table:
                    deltas[key] = nothing(kind)

    def _failed(self, method: str, key: Key | None, error: Exception) -> ProcessorError:
        name = type(self._spec.processor).__name__
        at = "" if key is None else f" for key {self._keys.thaw(key)!r:.200}"
        what = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        return ProcessorError(
            f"{name}.{method} failed{at} in batch {self._spec.batch_id}: {what}. Nothing of this "
            "batch was committed; the last checkpoint is valid",
            batch_id=self._spec.batch_id,
            key=None if key is None else repr(key),
            method=method,
        )

    def explain_unfit(self, error: Exception) -> ProcessorError:
        """Return an error that names the state and key whose value does not fit its type."""
        for key_group, overlay in self.overlays.items():
            for state, deltas in zip(self._codec.states, overlay, strict=True):
                for key, delta in deltas.items():
                    try:
                        state.batch(state.rows({key: delta}))
                    except (pa.ArrowException, OverflowError, TypeError, ValueError) as unfit:
                        return ProcessorError(
                            f"state {state.descriptor.name!r} of key {self._keys.thaw(key)!r:.200} "
                            f"in batch {self._spec.batch_id} holds a value that does not fit "
                            f"({state.descriptor.value_schema.to_string(show_field_metadata=False)})"
                            f": {unfit}. Nothing of this batch was committed",
                            batch_id=self._spec.batch_id,
                            key=repr(key),
                            state=state.descriptor.name,
                            key_group=key_group,
                        )
        return ProcessorError(
            f"the state changes of batch {self._spec.batch_id} cannot be encoded: {error}",
            batch_id=self._spec.batch_id,
        )
