"""
Skip calls that fail for a key, and continue with other keys.

A part of the input is run as always.  If it fails, its changes and its output are dropped, and its
keys are run again, a few at a time, whose changes and output are checked at once.  If these fail,
the key that the error names runs alone, and is kept or left out; then the others of the few run
again.  The timers that are due are a part too, after all rows.  So a part without a failure costs
nothing for each key.

The unit that is left out is a call: the rows of a key, its initial state, or one timer.  Where keys
that fail are frozen, a key with a mark is put aside before its part is run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Row

from statelog.errors import InvariantError, ProcessorError
from statelog.extensions.bad_records.dead_letters import (
    NO_FAILURE,
    FailedKeys,
    FailedPart,
    is_bad_record,
)
from statelog.extensions.bad_records.policy import ErrorPolicy
from statelog.extensions.recordings.format import Cells, cells_after, cells_of
from statelog.model import ChangeBatch
from statelog.spark.rows.interface import KeyedInput, ReadAgain, RowLike
from statelog.spark.worker.due_timers import Due
from statelog.spark.worker.extension import TaskExtension, TaskRun, TaskTools
from statelog.spark.worker.failures import error_text
from statelog.spark.worker.large_input import HugeKeyInput
from statelog.spark.worker.output_parts import Collector
from statelog.spark.worker.processor_run import ProcessorRun
from statelog.state.heap import Overlay
from statelog.state.kinds import Key

_INITIAL: Final = "handleInitialState"
_ROWS: Final = "handleInputRows"
_TIMER: Final = "handleExpiredTimer"
_TOGETHER: Final = 32
"""Number of calls to repeat together; checking them one by one takes longer."""

Place: TypeAlias = tuple[int, Key]
"""Key group and key."""
Overlays: TypeAlias = dict[int, Overlay]
Keys: TypeAlias = Mapping[int, Collection[Key]]
"""Keys by key group."""


class _SomeKeys:
    """An input without some of its keys."""

    def __init__(self, source: KeyedInput, without: Keys) -> None:
        self._source = source
        self._without = without
        self.key_groups = source.key_groups
        self.read = source.read
        self.row_count = 0

    def table_keys(self, key_group: int) -> Sequence[Key]:
        """See `KeyedInput`."""
        keys = self._source.table_keys(key_group)
        without = self._without.get(key_group)
        return [key for key in keys if key not in without] if without else keys

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """See `KeyedInput`."""
        without = self._without.get(key_group, ())
        return (key_rows for key_rows in self._source.keys(key_group) if key_rows[0] not in without)


@dataclass(frozen=True, slots=True)
class _Call:
    """
    A processor call that will be repeated.

    Args:
        place: Key group and key.
        method: The method.
        timers: The timer, for a call of `handleExpiredTimer`.
        user_key: The key as the processor gets it.
        rows: Returns the rows as objects that no call has changed.
    """

    place: Place
    method: str
    timers: tuple[int, ...] = ()
    user_key: Key = ()
    rows: Callable[[], Iterator[RowLike]] = lambda: iter(())


class _CallInput:
    """An input that contains the rows of some calls."""

    def __init__(self, calls: Sequence[_Call]) -> None:
        self._calls: dict[int, list[_Call]] = {}
        self.row_count = 0
        for call in calls:
            self._calls.setdefault(call.place[0], []).append(call)

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Do nothing: the rows have already been read."""

    def key_groups(self) -> Iterable[int]:
        """See `KeyedInput`."""
        return self._calls

    def table_keys(self, key_group: int) -> Sequence[Key]:
        """See `KeyedInput`."""
        return [call.place[1] for call in self._calls.get(key_group, ())]

    def keys(self, key_group: int) -> Iterator[tuple[Key, Key, Iterator[RowLike]]]:
        """See `KeyedInput`."""
        for call in self._calls.get(key_group, ()):
            yield call.place[1], call.user_key, call.rows()


def _copied(row: RowLike) -> RowLike:
    """Return a copy of *row* that is not affected by changes in place."""
    if isinstance(row, tuple) and not any(value.__class__ in (list, dict, Row) for value in row):
        return row
    return copy.deepcopy(row)


def _read_again(
    source: HugeKeyInput, key_group: int, key: Key, failure: ProcessorError
) -> Iterator[RowLike]:
    """Yield a key's rows from the disk; read errors are not blamed on the processor."""
    try:
        yield from source.rows_of(key_group, key)
    except Exception as error:
        raise failure from error


def _calls_of(source: KeyedInput, method: str, failure: ProcessorError) -> Iterator[_Call]:
    """Yield the calls for an input; raise *failure* if its rows cannot be created."""
    fresh = source.again() if isinstance(source, ReadAgain) else source
    for key_group in fresh.key_groups():
        try:
            for key, user_key, rows in fresh.keys(key_group):
                if isinstance(fresh, HugeKeyInput):
                    again = partial(_read_again, fresh, key_group, key, failure)
                else:
                    again = partial(map, _copied, list(rows))
                yield _Call((key_group, key), method, (), user_key, again)
        except Exception as error:
            raise failure from error


@dataclass(slots=True)
class _Part:
    """
    A part of the input, and the state before that part.

    Args:
        rows, initial: The input.
        frozen: Why keys are frozen that are not handled, by key group.
        before: The overlays before it.
        key_count: The keys before it.
        is_open: Whether its changes are not encoded yet, so that it may have to run again.
    """

    rows: KeyedInput
    initial: KeyedInput | None
    frozen: Mapping[int, Mapping[Key, str]]
    before: Overlays
    key_count: int
    is_open: bool = True

    def keys(self) -> dict[int, set[Key]]:
        """Return the keys of the part by key group."""
        keys: dict[int, set[Key]] = {}
        for source in (self.rows,) if self.initial is None else (self.rows, self.initial):
            for key_group in source.key_groups():
                keys.setdefault(key_group, set()).update(source.table_keys(key_group))
        return keys


class IsolatingRun:
    """Runs a processor through a `ProcessorRun`, skipping the calls that fail."""

    def __init__(
        self,
        run: ProcessorRun,
        failures: FailedKeys,
        collectors: Sequence[Collector],
        leave_out: Callable[[int, Key], None],
    ) -> None:
        self._run = run
        self._failures = failures
        self._collectors = collectors
        self._leave_out = leave_out
        self._left_out: set[Place] = set()
        self._part: _Part | None = None
        self._changes: ChangeBatch | None = None
        self.output = run.output
        self.begin = run.begin
        self.in_parts = run.in_parts
        self.flush = run.flush
        self.next_due_ms = run.next_due_ms
        self.stage = run.stage
        self.snapshot = run.snapshot

    @property
    def key_count(self) -> int:
        """How many keys have been processed so far."""
        return self._run.key_count

    # ------------------------------------------------------------------------- the steps of a run

    def take(self, rows: KeyedInput, initial: KeyedInput | None = None) -> None:
        """Run the processor over some keys, passing all their rows."""
        self._close_part()
        run = self._run
        self._failures.begin_part(rows, initial)
        run.prepare(rows, initial)
        frozen = self._frozen(
            lambda: {key_group: rows.table_keys(key_group) for key_group in rows.key_groups()}
        )
        for key_group, reasons in frozen.items():
            for key, reason in reasons.items():
                call = _Call((key_group, key), _ROWS)
                self._hold(call, self._before(call), reason)
        run.key_count += sum(map(len, frozen.values()))
        part = self._part = _Part(rows, initial, frozen, run.overlays, run.key_count)
        self._changes = None
        self._mark()
        run.overlays = self._branch(part.keys()) if part.before else {}
        taken = _SomeKeys(rows, frozen) if frozen else rows
        failure = _error_of(lambda: run.handle(taken, initial), run.flush)
        if failure is None:
            run.overlays = _joined(part.before, run.overlays)
        else:
            self._isolate(part, failure)

    def encoded(self) -> ChangeBatch:
        """Encode the changes for the log, without keys whose values do not fit their types."""
        self._settle()
        if self._changes is None:
            self._changes = self._run.encoded()
        return self._changes

    def retire(self, changes: ChangeBatch) -> None:
        """Discard the overlays, which were appended to the log as *changes*."""
        self._close_part()
        self._run.retire(changes)
        self._changes = None

    def end(self) -> None:
        """
        Run the processor for due timers, then close it.

        Raises as `take`.
        """
        due = alone = self._run.due()
        frozen = self._frozen(lambda: _by_group(timer[1:] for timer in due))
        together = [timer for timer in due if timer[2] not in frozen.get(timer[1], ())]
        if together and self._fire_together(together):
            alone = [timer for timer in due if timer[2] in frozen.get(timer[1], ())]
        elif self._settle():
            due = alone = self._run.due()  # without the rows of some keys
        if alone:
            self._run_again(_Call(timer[1:], _TIMER, timer[:1]) for timer in alone)
            self._changes = None
        self._close_part()
        if len(self._failures):
            self._failures.check(self.key_count + len({timer[1:] for timer in due}))
        self._run.close()

    # ------------------------------------------------------------------------- parts

    def _settle(self) -> bool:
        """Encode the part's changes; return whether its keys had to be run one at a time."""
        part = self._part
        if part is None or not part.is_open:
            return False
        failure = _error_of(self._encode)
        if failure is not None:
            self._isolate(part, failure)
            return True
        self._keep_part()
        return False

    def _encode(self) -> None:
        self._changes = self._run.encoded()

    def _keep_part(self) -> None:
        if self._part is not None and self._part.is_open:
            self._part.is_open = False
            self._keep()

    def _close_part(self) -> None:
        self._settle()
        if self._part is not None:
            self._failures.end_part()
            self._part = None

    def _fire_together(self, due: Sequence[Due]) -> bool:
        """Fire timers as a single part; return whether all calls succeeded."""
        run = self._run
        before = self._run.overlays
        self._mark()

        def encode() -> None:
            run.overlays = _joined(before, run.overlays)
            self._encode()

        run.overlays = self._branch(_by_group(timer[1:] for timer in due))
        if _error_of(lambda: run.fire(due), run.flush, encode) is None:
            self._keep()
            self._keep_part()
            return True
        self._roll_back()
        run.overlays = before
        return False

    # ------------------------------------------------------------------------- single keys

    def _isolate(self, part: _Part, failure: ProcessorError) -> None:
        """Discard the effects of a part, and run its keys again without the calls that fail."""
        run = self._run
        self._roll_back()
        part.is_open = False
        self._changes = None
        run.overlays = part.before
        self._left_out = {(group, key) for group, keys in part.frozen.items() for key in keys}
        if part.initial is not None:
            self._run_again(_calls_of(part.initial, _INITIAL, failure))
        calls = _calls_of(part.rows, _ROWS, failure)
        self._run_again(call for call in calls if call.place not in self._left_out)
        keys = sum(map(len, part.keys().values())) - sum(map(len, part.frozen.values()))
        run.key_count = part.key_count + keys

    def _run_again(self, calls: Iterator[_Call]) -> None:
        """Repeat calls in small groups; a key that an error names is run alone afterwards."""
        while calls_together := list(islice(calls, _TOGETHER)):
            self._run_apart(calls_together)

    def _run_apart(self, calls: Sequence[_Call]) -> None:
        """Make several calls together, leaving out the ones that fail."""
        calls = self._without_held(calls)
        if not calls:
            return
        self._run.failed = None
        failure, is_raised = self._attempt(calls)
        if failure is None:
            return
        if len(calls) == 1:
            cause = failure.__cause__ if is_raised else None
            self._put_aside(calls[0], cause or failure)
            return
        failed = self._run.failed
        apart = [call for call in calls if call.place == failed] or calls
        for call in apart:
            self._run_apart([call])
        if len(apart) < len(calls):
            self._run_apart([call for call in calls if call.place != failed])

    def _attempt(self, calls: Sequence[_Call]) -> tuple[ProcessorError | None, bool]:
        """Make calls; if one fails, return the error, and whether the call itself raised it."""
        run = self._run
        before = self._run.overlays
        run.overlays = self._branch(_by_group(call.place for call in calls))
        self._changes = None
        self._mark()
        raised = _error_of(lambda: self._make(calls))
        failure = raised or _error_of(run.encoded, run.flush)
        if failure is None:
            _merge(before, run.overlays)
            self._keep()
        else:
            if len(calls) == 1 and failure.__cause__ is None and failure.method is None:
                raise failure  # it is of the whole output
            self._roll_back()
        run.overlays = before
        return failure, raised is not None

    def _make(self, calls: Sequence[_Call]) -> None:
        """Make several calls of the same method."""
        method = calls[0].method
        run = self._run
        if method == _TIMER:
            run.fire([(call.timers[0], *call.place) for call in calls])
            return
        rows = _CallInput(calls)
        run.handle(*((_CallInput(()), rows) if method == _INITIAL else (rows, None)))

    def _without_held(self, calls: Sequence[_Call]) -> Sequence[_Call]:
        """Return the calls to make, setting aside the timers of frozen keys."""
        if calls[0].method != _TIMER:
            return calls
        frozen = self._frozen(lambda: _by_group(call.place for call in calls))
        if not frozen:
            return calls
        others = []
        for call in calls:
            key_group, key = call.place
            reason = frozen.get(key_group, {}).get(key)
            if reason is None:
                others.append(call)
                continue
            before = self._before(call)
            if self._run.drop_timer(call.timers[0], key_group, key):
                self._hold(call, before, reason)
        return others

    def _put_aside(self, call: _Call, error: BaseException) -> None:
        """Skip a call that has failed."""
        place = call.place
        timers = call.timers
        self._leave_out(*place)
        self._failures.add(place, call.method, timers, self._before(call), error)
        if (frozen := self._failures.frozen) is not None:
            self._run.overlay(place[0])[frozen.state_id][place[1]] = frozen.mark(
                ": ".join(error_text(error))
            )
        if call.method == _INITIAL:
            self._left_out.add(place)
        if timers:
            self._run.drop_timer(timers[0], *place)

    def _hold(self, call: _Call, before: Cells, reason: str) -> None:
        """Set a call aside because its key is frozen."""
        self._leave_out(*call.place)
        self._failures.hold(call.place, call.method, call.timers, before, reason)

    def _before(self, call: _Call) -> Cells:
        """Return a key's state for its dead letter."""
        run = self._run
        key_group, key = call.place
        group = run.group(key_group)
        before = cells_after(cells_of(group, key), run.overlay(key_group), key, group)
        return self._failures.before(before, call.timers)

    def _frozen(self, keys: Callable[[], Keys]) -> dict[int, dict[Key, str]]:
        """
        Return, by key group, why keys are frozen.

        *keys* is called only where keys may be frozen.
        """
        frozen = self._failures.frozen
        if frozen is None:
            return {}
        reasons: dict[int, dict[Key, str]] = {}
        for key_group, of_group in keys().items():
            overlay = self._run.overlays.get(key_group)
            later = {} if overlay is None else overlay[frozen.state_id]
            table = self._run.group(key_group).tables[frozen.state_id]
            marks = {key: table[key] for key in table.keys() & of_group} if table else {}
            marks.update((key, later[key]) for key in (later.keys() & of_group if later else ()))
            if marks:
                reasons[key_group] = {key: frozen.reason(mark) for key, mark in marks.items()}
        return reasons

    # ------------------------------------------------------------------------- what may be dropped

    def _branch(self, keys: Keys) -> Overlays:
        """Return overlays in which the entries of some keys are copies."""
        overlays = self._run.overlays
        kinds = self._failures.codec.kinds
        branch: Overlays = {}
        for key_group, of_group in keys.items():
            if key_group in overlays:
                branch[key_group] = [
                    {key: kind.rules.copy_delta(deltas[key]) for key in of_group if key in deltas}
                    for kind, deltas in zip(kinds, overlays[key_group], strict=True)
                ]
        return branch

    def _mark(self) -> None:
        for collector in self._collectors:
            collector.mark()

    def _keep(self) -> None:
        for collector in self._collectors:
            collector.keep()

    def _roll_back(self) -> None:
        for collector in self._collectors:
            collector.roll_back()


def _error_of(*steps: Callable[[], object]) -> ProcessorError | None:
    """Return the error that *steps* raise if a key's rows may be the cause; else raise it."""
    try:
        for step in steps:
            step()
    except ProcessorError as error:
        if error.__cause__ is not None and not is_bad_record(error.__cause__):
            raise
        return error
    return None


def _by_group(places: Iterable[Place]) -> dict[int, dict[Key, None]]:
    """Group keys by key group, in their order."""
    keys: dict[int, dict[Key, None]] = {}
    for key_group, key in places:
        keys.setdefault(key_group, {})[key] = None
    return keys


def _joined(before: Overlays, later: Overlays) -> Overlays:
    """Return overlays combined with later changes, without modifying *before*."""
    if not before:
        return later
    joined = {key_group: list(overlay) for key_group, overlay in before.items()}
    for key_group, overlay in later.items():
        changes = joined.setdefault(key_group, overlay)
        for state_id, deltas in enumerate(overlay):
            if deltas:
                changes[state_id] = {**changes[state_id], **deltas}
    return joined


def _merge(into: Overlays, later: Overlays) -> None:
    """Add later changes to the overlays."""
    for key_group, overlay in later.items():
        changes = into.setdefault(key_group, overlay)
        if changes is not overlay:
            for deltas, changed in zip(changes, overlay, strict=True):
                deltas.update(changed)


class TaskBadRecords(TaskExtension):
    """The keys of a task whose processing fails."""

    keeps_rows: ClassVar[bool] = True

    def __init__(self, part: ErrorPolicy, tools: TaskTools) -> None:
        self._tools = tools
        spec = tools.spec
        self._failures = FailedKeys(part, tools.codec, spec.context, spec.checkpoint_id)

    def wrap(
        self, run: TaskRun, collectors: Sequence[Collector], leave_out: Callable[[int, Key], None]
    ) -> TaskRun:
        """Return a run that continues if the processing of a key fails."""
        if not isinstance(run, ProcessorRun):
            raise InvariantError("a columnar processor cannot fail for a single key")
        return IsolatingRun(run, self._failures, collectors, leave_out)

    def answer(self) -> FailedPart | None:
        """Return the keys that failed with their dead letters, and count them."""
        part = self._failures.answer(self._tools.files, self._tools.spec)
        self._tools.figures.update(failed_keys=part.keys, dead_letters=part.letters.count)
        return None if part == NO_FAILURE else part
