"""
Record what chosen keys of a task see.

The keys are chosen in columns, for all keys of the input at once.  A chosen key costs a look at its
state before and after, and a copy of its rows; other keys cost nothing.  A key that exceeds a bound
is left out whole, because a part of its rows cannot be replayed, and is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from statelog.errors import ProcessorError
from statelog.model import KeyGroupRange
from statelog.spark.query.record import RecordSpec
from statelog.spark.rows.interface import KeyedInput, Output, RowLike
from statelog.spark.worker.key_choice import KeyChoice
from statelog.spark.worker.recorded_rows import RecordedRows
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap.tables import Key, KeyGroupState, Overlay
from statelog.state.recordings.cells import Cells, cells_after, cells_of, entry_count

TOO_LARGE: Final = "more bytes than one key may take"
TOO_MANY: Final = "more bytes than one micro-batch may take"
_ENTRY_BYTES: Final = 16
"""Least bytes of an entry of state; a key with more entries than fit is not encoded."""
_NO_KEYS: Final[frozenset[Key]] = frozenset()


@dataclass(slots=True)
class RecordedKey:
    """
    A key that is recorded.

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


@dataclass(frozen=True, slots=True)
class FailedCall:
    """
    The call of the processor that failed.

    Args:
        key_group: Its key group.
        key: As tables hold it.
        method: Its name, or "" where a value of the state did not fit.
        timer_ms: The timer, or -1.
        group: The state of the key group before the micro-batch.
    """

    key_group: int
    key: Key
    method: str
    timer_ms: int
    group: KeyGroupState


class TaskRecorder:
    """
    Collects what the chosen keys of one task see.

    Args:
        spec: What to record.
        codec: The operator's codec.
        key_groups: All key groups of the operator.
        output: Collects the rows that recorded keys yield.

    Attributes: `keys`: the keys, in the order in which they are numbered; `calls`, `rows` and
    `initial`: what they saw, by the number of the key; `failed`: the call that failed, or None.
    """

    def __init__(
        self, spec: RecordSpec, codec: OperatorCodec, key_groups: KeyGroupRange, output: Output
    ) -> None:
        self.spec = spec
        self.codec = codec
        self.output = output
        self._choice = KeyChoice(spec, codec, key_groups)
        self._marked: dict[int, set[Key]] = {}
        self._numbers: dict[tuple[int, Key], int] = {}
        self._open: set[int] = set()
        self._part: tuple[RecordedRows, ...] = ()
        self._bytes = 0
        self.keys: list[RecordedKey] = []
        self.calls: list[tuple[int, str, int, int]] = []
        self.rows: list[tuple[int, pa.Table]] = []
        self.initial: list[tuple[int, pa.Table]] = []
        self.failed: FailedCall | None = None

    # ------------------------------------------------------------------------------ the choice

    def begin_part(self, rows: KeyedInput, initial: KeyedInput | None) -> None:
        """Choose the keys of a part of the input, and copy their rows."""
        self._part = tuple(
            RecordedRows(each, self.spec.key_bytes) for each in (rows, initial) if each is not None
        )
        chosen = [self._choice.of_rows(each.source) for each in self._part]
        for each, keys in zip(self._part, chosen, strict=True):
            each.copy(keys)
        self._marked = {}
        for found in chosen:
            for key_group, keys_of_group in found.items():
                self._marked.setdefault(key_group, set()).update(keys_of_group)

    def marked(self, key_group: int) -> set[Key] | frozenset[Key]:
        """Return the chosen keys of a key group of the part."""
        return self._marked.get(key_group, _NO_KEYS)

    def of_timers(self, due: Iterable[tuple[int, int, Key]]) -> set[tuple[int, Key]]:
        """Return the chosen ones of the keys with due timers, as (key group, key)."""
        keys = list(dict.fromkeys((key_group, key) for _, key_group, key in due))
        return self._choice.of_keys(keys) | self._numbers.keys()

    # ----------------------------------------------------------------------------- what is seen

    def begin(self, key_group: int, key: Key, group: KeyGroupState) -> int:
        """Begin to record a key before its first call; return its number."""
        number = self._numbers.get((key_group, key))
        if number is None:
            number = self._numbers[key_group, key] = len(self.keys)
            one = RecordedKey(key_group, key, cells_of(group, key))
            self.keys.append(one)
            if entry_count(one.before) * _ENTRY_BYTES > self.spec.key_bytes:
                one.lost = TOO_LARGE
            for each, into in zip(self._part, (self.rows, self.initial), strict=False):
                self._take_rows(one, number, each, into)
        self._open.add(number)
        return number

    def _take_rows(
        self, one: RecordedKey, number: int, rows: RecordedRows, into: list[tuple[int, pa.Table]]
    ) -> None:
        if one.lost:
            return
        found = rows.of(one.key_group, one.key)
        if found is None:
            one.lost = TOO_LARGE
        elif self._bytes + found.num_rows * rows.row_bytes > self.spec.batch_bytes:
            one.lost = TOO_MANY
        elif found.num_rows:
            self._bytes += int(found.num_rows * rows.row_bytes)
            into.append((number, found))

    def watch(
        self, number: int, method: str, timer_ms: int, produced: Iterable[RowLike]
    ) -> Iterator[RowLike]:
        """Yield what a call yields, and keep it."""
        output, one = self.output, self.keys[number]
        start = output.pending
        most = self.spec.key_bytes // _ENTRY_BYTES
        try:
            for each in produced:
                if not one.lost:
                    output.extend((each,))
                    if output.pending - start > most:
                        one.lost = TOO_LARGE
                yield each
        finally:
            self.calls.append((number, method, timer_ms, output.pending - start))

    def called(self, number: int, method: str, timer_ms: int = -1) -> None:
        """Note a call that yields nothing."""
        self.calls.append((number, method, timer_ms, 0))

    def settle(
        self, group_of: Callable[[int], KeyGroupState], overlays: Mapping[int, Overlay]
    ) -> None:
        """
        Note the state after the calls so far.

        Args:
            group_of: Returns the state of a key group under the overlays.
            overlays: The changes.
        """
        for number in self._open:
            one = self.keys[number]
            if one.lost:
                continue
            group = group_of(one.key_group)
            one.after = cells_of(group, one.key)
            overlay = overlays.get(one.key_group)
            if overlay is not None:
                one.after = cells_after(one.after, overlay, one.key, group)
            if entry_count(one.after) * _ENTRY_BYTES > self.spec.key_bytes:
                one.lost = TOO_LARGE
        self._open.clear()

    def end_part(self) -> None:
        """Forget the rows of a part, whose changes were appended to the log."""
        self._part, self._marked = (), {}

    # -------------------------------------------------------------------------------- the result

    def fail(self, call: FailedCall) -> int | None:
        """Begin to record a key that failed; return its number, None where it is not recorded."""
        number = self.begin(call.key_group, call.key, call.group)
        return None if self.keys[number].lost else number

    def dropped(self) -> dict[str, int]:
        """Return how many keys were left out, by reason."""
        return dict(Counter(one.lost for one in self.keys if one.lost))

    def output_rows(self) -> pa.Table:
        """Return the rows that were yielded, in the order of calls; raises `ProcessorError`."""
        return pa.Table.from_batches([self.output.batch()])

    def output_or_none(self) -> pa.Table | None:
        """Return the rows that were yielded, or None where one does not fit."""
        try:
            return self.output_rows()
        except ProcessorError:
            return None
