"""
A run of a processor that continues where the processing of a key fails.

The unit is a call: the rows of a key, its initial state, or one timer.  What a call yields is held until
the call ends, and what it writes is undone if it raises.  Values and rows are converted many calls later,
all together, as in `ProcessorRun`: a call whose values or rows do not fit is undone then, before its rows
are converted.  A key is in one part of the input only, and its timers fire after all rows, so no later
call depends on a call that is undone, except for later timers of the key, which are undone too.

Where keys that fail are frozen, a call that is undone marks its key.  For a key with a mark no call is
made: its rows and timers are put aside as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import Final, NoReturn, TypeAlias

from statelog.errors import InvariantError, ProcessorError
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.spark.rows.interface import KeyedInput, Output, RevocableOutput, RowLike
from statelog.spark.rows.spark_versions import ExpiredTimerInfo
from statelog.spark.rows.unfit_output import UnfitOutputError
from statelog.spark.worker.dead_letters import (
    FailedKeys,
    FrozenKeys,
    is_bad_record,
    only_timers,
)
from statelog.spark.worker.output_parts import OutputParts
from statelog.spark.worker.protocol import BatchContext
from statelog.spark.worker.recorded_run import RecordedRun
from statelog.spark.worker.recorder import TaskRecorder
from statelog.spark.worker.side_output import SideOutputs
from statelog.spark.worker.unencodable import unencodable_values
from statelog.state.encoding.values import UNENCODABLE
from statelog.state.heap.tables import Key, Overlay
from statelog.state.keyed_state import KeyedState
from statelog.state.objects import Timers
from statelog.state.recordings.cells import Cells, cells_after, cells_of

_INITIAL: Final = "handleInitialState"
_ROWS: Final = "handleInputRows"
_TIMER: Final = "handleExpiredTimer"
_OF_ROWS: Final = -1
"""The timer of a call that has none."""
_OF_INITIAL: Final = -2
"""What stands for the timer of a call of `handleInitialState`, to tell the rows that it emits."""
_NOT_RECORDED: Final = -1
_LIST_ITERATOR: Final[type] = type(iter([]))

Place: TypeAlias = tuple[int, Key]
"""Key group and key."""
Undo: TypeAlias = dict[int, object]
"""The deltas of a key before a call, by state id; a variable that was not changed is left out."""


@dataclass(frozen=True, slots=True)
class _FailedCall:
    """A call to undo: its place, method and timers, the deltas before it, and its error."""

    place: Place
    method: str
    timers: tuple[int, ...]
    undo: Undo
    error: BaseException


class TolerantRun(RecordedRun):
    """
    Runs a processor as `ProcessorRun` does, and leaves out the calls that fail.

    Args:
        context, state, key_group_range, recorder: As for `RecordedRun`.
        output: Collects what the processor yields; its items can be taken back.
        failures: Gets the calls that fail.
        new_output: Returns an empty output of the row format.
        checkpoint_id: The checkpoint being made.
        sides: Collects what the processor emits to side outputs; None for none.
    """

    def __init__(
        self,
        context: BatchContext,
        state: KeyedState,
        key_group_range: KeyGroupRange,
        output: OutputParts,
        recorder: TaskRecorder,
        *,
        failures: FailedKeys,
        new_output: Callable[[], Output],
        checkpoint_id: int,
        sides: SideOutputs | None = None,
    ) -> None:
        super().__init__(context, state, key_group_range, output, recorder, sides)
        if not isinstance(output.rows, RevocableOutput):
            raise InvariantError(f"{type(output.rows).__name__} cannot take rows back")
        self._parts = output
        self._rows: RevocableOutput = output.rows
        self._failures = failures
        self._new_output = new_output
        self._frozen: FrozenKeys | None = None
        if failures.freezes:
            self._frozen = FrozenKeys(self._cursor, self._codec, checkpoint_id)
        self._has_initial = False
        self._left_out: set[Place] = set()
        self._unreadable: BaseException | None = None
        self._due_keys = 0
        # Of the calls since the last check: key groups, and what was before each call.
        self._open: set[int] = set()
        self._before_initial: dict[Place, Undo] = {}
        self._before_rows: dict[Place, Undo] = {}
        self._fired: dict[Place, list[tuple[int, Undo]]] = {}
        # Timers whose calls failed or were not made, each with how many of its key had fired before.
        self._gone: dict[Place, list[tuple[int, int]]] = {}
        self._checked: ChangeBatch | None = None
        self._timer_ms = _OF_ROWS
        self._sides.emitter = lambda: (self._key_group, self._cursor.key, self._timer_ms)

    # ------------------------------------------------------------------------- the steps of a run

    def take(self, rows: KeyedInput, initial: KeyedInput | None = None) -> None:
        """
        Run the processor over keys with all their rows.

        Raises:
            ProcessorError: More keys fail than allowed, or one is not of its rows.
        """
        self._failures.begin_part(rows, initial)
        self._has_initial = initial is not None
        super().take(rows, initial)
        self._check_calls()
        self._before_initial.clear()
        self._left_out.clear()
        self._failures.end_part()

    def retire(self, changes: ChangeBatch) -> None:
        """Drop the overlays, which were appended to the log as *changes*."""
        super().retire(changes)
        self._checked = None

    def encoded(self) -> ChangeBatch:
        """Return the changes for the log, as they were checked."""
        return super().encoded() if self._checked is None else self._checked

    def _bound_output(self) -> None:
        self._parts.bound_pending()

    def _convert_if_many(self) -> None:
        if self._parts.is_full or self._sides.is_full:
            self._check_calls()

    def _begin_timers(self, due: Sequence[tuple[int, int, Key]]) -> None:
        super()._begin_timers(due)
        self._due_keys = len({(key_group, key) for _, key_group, key in due})

    def _fire_timers(self, timers_id: int) -> None:
        super()._fire_timers(timers_id)
        self._check_calls()

    def _close(self) -> None:
        self._failures.check(self.key_count + self._due_keys)
        super()._close()

    def _enter(self, key_group: int) -> None:
        super()._enter(key_group)
        self._open.add(key_group)
        self._checked = None

    # ------------------------------------------------------------------------------- the calls

    def _initialize_groups(self, initial: KeyedInput, rows_of: KeyedInput) -> None:
        initialize = self._processor.handleInitialState
        self._timer_ms = _OF_INITIAL
        for key_group in initial.key_groups():
            self._enter(key_group)
            with_rows = set(rows_of.table_keys(key_group))
            for key, key_object, rows in initial.keys(key_group):
                self._cursor.key = key
                self._begin_initial(key)
                undo = self._before_initial[key_group, key] = self._saved(key)
                try:
                    for row in self._guarded(rows):
                        initialize(key_object, row, self._times)
                except (Exception, SystemExit) as error:
                    self._leave_out(_INITIAL, key, (), undo, error)
                    self._left_out.add((key_group, key))
                self.key_count += key not in with_rows

    def _handle_keys(self, key_group: int, rows_of: KeyedInput) -> None:
        handle_rows, cursor, times = self._processor.handleInputRows, self._cursor, self._times
        items, add_end = self._parts.items, self._calls.ends.append
        marked = self._recorder.marked(key_group)
        saves = self._has_initial or any(self._overlay(key_group))
        self._timer_ms = _OF_ROWS
        undo: Undo = {}
        for key, key_object, rows in rows_of.keys(key_group):
            cursor.key = key
            if saves:
                if (key_group, key) in self._left_out:  # its initial state is missing
                    add_end(len(items))
                    continue
                undo = self._before_rows[key_group, key] = self._saved(key)
            if self._is_held(_ROWS, key, ()):
                add_end(len(items))
                continue
            number = self._begin_key(key) if key in marked else _NOT_RECORDED
            rows = rows if rows.__class__ is _LIST_ITERATOR else self._guarded(rows)
            try:
                held = self._held(handle_rows(key_object, rows, times), number)
            except (Exception, SystemExit) as error:
                self._leave_out(_ROWS, key, (), undo, error)
            else:
                self._take_held(held, number, _ROWS, _OF_ROWS)
            add_end(len(items))

    def _fire(self, time: int, key: Key) -> None:
        timers, place = self._timers, (self._key_group, key)
        if timers is None or not timers.contains(time):
            return  # the call for an earlier timer deleted it
        if self._is_held(_TIMER, key, (time,)):
            self._lose_timer(timers, time)
            return
        undo, key_object, info = self._saved(key), self._key_of_timer(key), ExpiredTimerInfo(time)
        handle = self._processor.handleExpiredTimer
        self._calls.begin((key,), self._key_group, _TIMER, time)
        self._timer_ms = time
        number = self._begin_key(key) if place in self._of_timers else _NOT_RECORDED
        try:
            produced = handle(key=key_object, timerValues=self._times, expiredTimerInfo=info)
            held = self._held(produced, number)
        except (Exception, SystemExit) as error:
            self._leave_out(_TIMER, key, (time,), undo, error)
            self._lose_timer(timers, time)
        else:
            self._take_held(held, number, _TIMER, time)
            self._fired.setdefault(place, []).append((time, undo))
            timers.delete(time)
        self._calls.ends.append(len(self._parts.items))
        self._calls.finish()

    def _lose_timer(self, timers: Timers, time: int) -> None:
        place = self._key_group, self._cursor.key
        timers.delete(time)
        self._gone.setdefault(place, []).append((len(self._fired.get(place, ())), time))

    def _held(self, produced: object, number: int) -> list[RowLike]:
        """Return what a call yields, once it has ended; of a key that is recorded only if it fits."""
        if produced is None:
            return []
        items = produced if produced.__class__ is GeneratorType else self._returned(produced)
        held = self._rows.held(items)
        if number != _NOT_RECORDED:
            alone = self._new_output()
            alone.extend(held)
            alone.batch()
        return held

    def _take_held(self, held: Iterable[RowLike], number: int, method: str, timer_ms: int) -> None:
        if number != _NOT_RECORDED:
            held = self._recorder.watch(number, method, timer_ms, held)
        self._parts.extend(held)

    def _guarded(self, rows: Iterable[RowLike]) -> Iterator[RowLike]:
        """Yield the rows of a call; an error of reading them is not one of the processor."""
        try:
            yield from rows
        except Exception as error:
            self._unreadable = error
            raise

    def _is_held(self, method: str, key: Key, timers: tuple[int, ...]) -> bool:
        """Put a call aside if the key is frozen; return whether it is."""
        reason = "" if self._frozen is None else self._frozen.reason()
        if not reason:
            return False
        place = self._key_group, key
        self._recorder.leave_out(*place)
        self._failures.hold(place, method, timers, self._before(place, timers), reason)
        return True

    # ------------------------------------------------------------------------------- undo

    def _saved(self, key: Key) -> Undo:
        """Return copies of the deltas of a key of the current key group."""
        kinds = self._codec.kinds
        return {
            state_id: kinds[state_id].rules.copy_delta(deltas[key])
            for state_id, deltas in enumerate(self._overlay(self._key_group))
            if key in deltas
        }

    def _leave_out(
        self, method: str, key: Key, timers: tuple[int, ...], undo: Undo, error: BaseException
    ) -> None:
        """Undo the call that raised, unless its error is not of the rows."""
        if self._unreadable is not None or not is_bad_record(error):
            super()._raise(method, key, error, timers[0] if timers else _OF_ROWS)
        self._sides.take_back()
        self._undo(_FailedCall((self._key_group, key), method, timers, undo, error))

    def _raise(
        self, method: str, key: Key | None, error: BaseException, timer_ms: int = _OF_ROWS
    ) -> NoReturn:
        if isinstance(error, ProcessorError) and not isinstance(error, UnfitOutputError):
            raise error  # it names the call already
        super()._raise(method, key, error, timer_ms)

    def _undo(self, failed: _FailedCall) -> None:
        """Restore the deltas of a key as they were before a call, and report the call."""
        key_group, key = failed.place
        overlay = self.overlays[key_group]
        for state_id, deltas in enumerate(overlay):
            if state_id in failed.undo:
                deltas[key] = failed.undo[state_id]
            else:
                deltas.pop(key, None)
        before = self._before(failed.place, failed.timers)
        self._checked = None
        self._recorder.leave_out(key_group, key)
        self._failures.add(failed.place, failed.method, failed.timers, before, failed.error)
        if self._frozen is not None:
            self._enter(key_group)
            self._cursor.key = key
            self._frozen.freeze(failed.error)

    def _before(self, place: Place, timers: tuple[int, ...]) -> Cells:
        """Return the state of a key for its dead letter; of the due timers only the called ones."""
        key_group, key = place
        group = self._group(key_group)
        before = cells_after(cells_of(group, key), self._overlay(key_group), key, group)
        if self._frozen is not None:
            before.pop(self._frozen.state_id, None)  # not of the processor
        if timers and self._timers_id is not None:
            until = self._context.due_until_ms
            before = dict(only_timers(before, self._timers_id, timers, until))
        return before

    # ------------------------------------------------------------------------------- the check

    def _check_calls(self) -> None:
        """Undo the calls since the last check that do not fit, and convert the rows of the others."""
        while failed := self._unfit_calls():
            rejected: set[tuple[int, Key, int]] = set()
            for place, call in failed.items():
                rejected |= {(*place, time) for time in call.timers or (_OF_ROWS,)}
                if call.method == _INITIAL:
                    rejected.add((*place, _OF_INITIAL))
                self._undo(call)
                self._delete_timers(call)
            positions = set(self._calls.positions(rejected))
            self._rows.drop(positions)
            self._calls.drop(positions)
            self._sides.drop(rejected)
        self._sides.flush()
        self._open.clear()
        self._before_rows.clear()
        self._fired.clear()
        self._gone.clear()

    def _delete_timers(self, call: _FailedCall) -> None:
        """Delete the timers of calls that were undone, and later ones that are gone: each fires once."""
        if call.timers and self._timers is not None:
            self._enter(call.place[0])
            self._cursor.key = call.place[1]
            for time in call.timers:
                self._timers.delete(time)
            fired = [each for each in self._fired[call.place] if each[0] not in call.timers]
            self._fired[call.place] = fired
            for before, time in self._gone.get(call.place, ()):
                if before > len(fired):
                    self._timers.delete(time)

    def _unfit_calls(self) -> dict[Place, _FailedCall]:
        """Convert state, then rows; return the first call of each key that does not fit."""
        unfit = self._unfit_state()
        if unfit or not len(self._parts.items):
            return unfit
        try:
            self._parts.flush()
        except UnfitOutputError as error:
            for misfit in self._rows.misfits():
                call = self._unfit_rows(misfit)
                other = unfit.get(call.place)
                if other is None or len(other.timers) < len(call.timers):
                    unfit[call.place] = call
            if not unfit:
                raise self.located(error) from error.__cause__
        return unfit

    def _unfit_rows(self, misfit: UnfitOutputError) -> _FailedCall:
        """Return the call that yielded an item that does not fit."""
        call = self._calls.call_of(misfit.at)
        place = call.key_group, call.key
        if call.method == _TIMER:
            times = [time for time, _ in self._fired[place]]
            return self._from_timer(place, times.index(call.timer_ms), misfit)
        return _FailedCall(place, call.method, (), self._before_rows.get(place, {}), misfit)

    def _from_timer(self, place: Place, first: int, error: BaseException) -> _FailedCall:
        """Return the calls of a key for its timers from one on."""
        fired = self._fired[place][first:]
        return _FailedCall(place, _TIMER, tuple(time for time, _ in fired), fired[0][1], error)

    def _unfit_state(self) -> dict[Place, _FailedCall]:
        """Encode what the calls since the last check changed; return those that do not fit."""
        overlays = self._open_overlays()
        batch_id = self._context.batch_id
        try:
            changes = self._codec.encode(overlays)
        except UNENCODABLE as error:
            unfit: dict[Place, _FailedCall] = {}
            for key_group, key, failure in unencodable_values(self._codec, overlays, batch_id):
                place = key_group, key
                unfit.setdefault(place, self._unfit_value(place, failure))
            if not unfit:
                raise self.locate_unencodable_value(error) from error
            return unfit
        is_whole = not self._fired and overlays.keys() == self.overlays.keys()
        self._checked = changes if is_whole else None
        return {}

    def _open_overlays(self) -> dict[int, Overlay]:
        if not self._fired:
            return {each: self.overlays[each] for each in self._open if each in self.overlays}
        overlays: dict[int, Overlay] = {}
        for key_group, key in self._fired:
            of_group = self.overlays[key_group]
            copy = overlays.setdefault(key_group, [{} for _ in of_group])
            for deltas, mine in zip(of_group, copy, strict=True):
                if key in deltas:
                    mine[key] = deltas[key]
        return overlays

    def _unfit_value(self, place: Place, error: ProcessorError) -> _FailedCall:
        """Return the first call of a key that left a value that does not fit."""
        if place in self._fired:
            undos = [undo for _, undo in self._fired[place]]
            after = [self._fits(place, undo) for undo in undos[1:]]
            return self._from_timer(
                place, after.index(False) if False in after else len(after), error
            )
        initial = self._before_initial.get(place)
        before = self._before_rows.get(place)
        if initial is not None and (before is None or not self._fits(place, before)):
            self._left_out.add(place)
            return _FailedCall(place, _INITIAL, (), initial, error)
        return _FailedCall(place, _ROWS, (), before or {}, error)

    def _fits(self, place: Place, deltas: Undo) -> bool:
        """Return whether deltas of a key can be encoded."""
        overlay: Overlay = [
            {place[1]: deltas[state_id]} if state_id in deltas else {}
            for state_id in range(len(self._codec.states))
        ]
        try:
            self._codec.encode({place[0]: overlay})
        except UNENCODABLE:
            return False
        return True
