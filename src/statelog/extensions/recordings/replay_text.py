"""Print recorded keys and replayed steps as text or as JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rich.text import Text

from statelog.cli.output import print_json, print_table, say, utc
from statelog.extensions.recordings.step import RecordedStep

if TYPE_CHECKING:
    from statelog.extensions.testing.replay import ReplayedStep

_ROWS_SHOWN = 20


@runtime_checkable
class _Row(Protocol):
    """A PySpark Row, which this package does not import."""

    __fields__: Sequence[str]

    def __iter__(self) -> Iterator[object]: ...


def show_recordings(recorded: Sequence[RecordedStep], *, as_json: bool) -> None:
    """Print the recorded keys of a location, and how often each was recorded."""
    by_key: dict[tuple[str, str], list[RecordedStep]] = {}
    for step in recorded:
        by_key.setdefault((step.task.operator_id, repr(step.key)), []).append(step)
    rows = []
    for steps in by_key.values():
        operator = steps[0].task.operator_id
        key = list(map(plain, steps[0].key))
        failures = sum(step.failure is not None for step in steps)
        count = len(steps) - failures
        ids = sorted(step.task.checkpoint_id for step in steps)
        if as_json:
            facts = {"operator": operator, "key": key, "steps": count, "failures": failures}
            print_json({**facts, "first_checkpoint": ids[0], "last_checkpoint": ids[-1]})
        span = f"{ids[0]} to {ids[-1]}" if ids[0] != ids[-1] else str(ids[0])
        cells = (operator, " ".join(map(str, key)), str(count), str(failures), span)
        rows.append([Text(cell, style="red" if failures else "") for cell in cells])
    heads = ("operator", "key", "steps", "failures", "checkpoints")
    if rows and not as_json:
        print_table(heads, rows, numbers=("steps", "failures"))
    elif not as_json:
        say("no recordings; the setting `record` chooses the keys that a query records")


def show_step(step: ReplayedStep) -> None:
    """Print a step: its input, state and timers, output, and differences."""
    task = step.recorded.task
    head = f"checkpoint {task.checkpoint_id}, batch {task.batch_id}"
    if task.now_ms >= 0:
        head += f", {utc(task.now_ms)} UTC"
    if task.time_mode == "eventtime":
        head += f", watermark {utc(task.watermark_ms)} UTC"
    say((head, "bold"))
    for name, value, style in _lines(step):
        say((f"  {name:8}", "dim"), (value, style))
    for difference in step.differences:
        say((f"  {difference.what} differs", "bold red"))
        say((f"    - recorded {value_text(difference.recorded)}", "red"))
        say((f"    + now      {value_text(difference.found)}", "green"))
    if not step.differences:
        fails = step.error is not None
        say(("  fails as recorded", "bold red") if fails else ("  as recorded", "green"))
    say()


def _lines(step: ReplayedStep) -> Iterator[tuple[str, str, str]]:
    """Yield the name, text and style of each line that describes a step."""
    for row in step.input[:_ROWS_SHOWN]:
        yield "row", row_text(row), ""
    if len(step.input) > _ROWS_SHOWN:
        yield "", f"... {len(step.input) - _ROWS_SHOWN} more rows", ""
    for call in step.recorded.calls:
        if call.timer_ms >= 0:
            yield "timer", f"{call.timer_ms} ({utc(call.timer_ms)} UTC)", ""
    yield "before", state_text(step.before, step.timers_before), ""
    if step.recorded_result is not None:
        after = step.recorded_result
        yield "after", state_text(after.state, after.timers), ""
        for row in after.output[:_ROWS_SHOWN]:
            yield "output", row_text(row), ""
    failure = step.recorded.failure
    if failure is not None:
        yield "raised", f"{failure.error}: {failure.message}", "yellow"


def row_text(row: _Row) -> str:
    """Format a row as text."""
    fields = zip(row.__fields__, row, strict=True)
    return ", ".join(f"{name}={one_text(value)}" for name, value in fields)


def state_text(state: Mapping[str, object], timers: Sequence[int]) -> str:
    """Format the state of a key as text."""
    parts = [f"{name}={value!r}" for name, value in state.items()]
    if timers:
        parts.append(f"timers={list(timers)}")
    return "  ".join(parts) or "no state"


def one_text(value: object) -> str:
    """Format a value as text."""
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else repr(value)


def value_text(value: object) -> str:
    """Format a recorded or new value in a difference."""
    if value is None or value == []:
        return "nothing"
    if isinstance(value, list) and any(hasattr(row, "__fields__") for row in value):
        return "; ".join(f"({row_text(row)})" for row in value)
    return value if isinstance(value, str) else repr(value)


def step_json(step: ReplayedStep) -> dict[str, object]:
    """Return a step as JSON."""
    task = step.recorded.task
    failure = step.recorded.failure
    result = step.recorded_result
    return {
        "checkpoint_id": task.checkpoint_id,
        "batch_id": task.batch_id,
        "operator": task.operator_id,
        "key": plain(step.recorded.key),
        "now_ms": task.now_ms,
        "watermark_ms": task.watermark_ms,
        "input": [_dict(row) for row in step.input],
        "before": plain(step.before),
        "timers_before": list(step.timers_before),
        "after": None if result is None else plain(result.state),
        "timers_after": None if result is None else list(result.timers),
        "output": None if result is None else [_dict(row) for row in result.output],
        "failure": None
        if failure is None
        else {"method": failure.method, "error": failure.error, "message": failure.message},
        "error": None if step.error is None else step.error.message,
        "differences": [
            {
                "what": difference.what,
                "recorded": plain(difference.recorded),
                "found": plain(difference.found),
            }
            for difference in step.differences
        ],
    }


def _dict(row: _Row) -> dict[str, object]:
    return {name: plain(value) for name, value in zip(row.__fields__, row, strict=True)}


def plain(value: object) -> object:
    """Convert a value to a form that JSON can represent."""
    if isinstance(value, _Row):
        return _dict(value)
    if isinstance(value, Mapping):
        if all(isinstance(name, str) for name in value):
            return {name: plain(element) for name, element in value.items()}
        return [[plain(name), plain(element)] for name, element in value.items()]
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
