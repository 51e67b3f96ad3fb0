"""Show recorded keys and replayed steps: as text in colour, or as JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from statelog.cli.output import PlainTable, console, print_json, utc
from statelog.state.recordings import RecordedStep

if TYPE_CHECKING:
    from statelog.spark.testing.replay import ReplayedStep

_ROWS_SHOWN = 20


def show_recordings(recorded: Sequence[RecordedStep], *, as_json: bool) -> None:
    """Print the recorded keys of a location, with how often each was recorded."""
    keys: dict[tuple[str, str], dict[str, Any]] = {}
    for step in recorded:
        at = (step.task.operator_id, repr(step.key))
        totals = keys.setdefault(
            at,
            {
                "operator": at[0],
                "key": plain(step.key),
                "steps": 0,
                "failures": 0,
                "checkpoints": [],
            },
        )
        totals["steps" if step.failure is None else "failures"] += 1
        totals["checkpoints"].append(step.task.checkpoint_id)
    if as_json:
        for totals in keys.values():
            ids = totals.pop("checkpoints")
            print_json({**totals, "first_checkpoint": min(ids), "last_checkpoint": max(ids)})
        return
    if not keys:
        console().print("no recordings; the setting `record` chooses what a query records")
        return
    table = PlainTable(box=None, pad_edge=False)
    for name in ("operator", "key", "steps", "failures", "checkpoints"):
        table.add_column(name, justify="right" if name in ("steps", "failures") else "left")
    for totals in keys.values():
        ids = totals["checkpoints"]
        span = f"{min(ids)} to {max(ids)}" if len(set(ids)) > 1 else str(ids[0])
        key = " ".join(map(str, totals["key"]))
        style = "red" if totals["failures"] else None
        cells = (totals["operator"], key, str(totals["steps"]), str(totals["failures"]), span)
        table.add_row(*map(Text, cells), style=style)
    console().print(table)


def show_step(step: ReplayedStep) -> None:
    """Print one step: its input, state and timers, output, and what differs."""
    out = console()
    task = step.recorded.task
    head = f"checkpoint {task.checkpoint_id}, batch {task.batch_id}"
    if task.now_ms >= 0:
        head += f", {utc(task.now_ms)} UTC"
    if task.time_mode == "eventtime":
        head += f", watermark {utc(task.watermark_ms)} UTC"
    out.print(Text(head, style="bold"))

    def line(name: str, value: str, style: str = "") -> None:
        out.print(Text.assemble((f"  {name:8}", "dim"), (value, style)), soft_wrap=True)

    for row in step.input[:_ROWS_SHOWN]:
        line("row", row_text(row))
    if len(step.input) > _ROWS_SHOWN:
        line("", f"... {len(step.input) - _ROWS_SHOWN} more rows")
    for call in step.recorded.calls:
        if call.timer_ms >= 0:
            line("timer", f"{call.timer_ms} ({utc(call.timer_ms)} UTC)")
    line("before", state_text(step.before, step.timers_before))
    if step.recorded_result is not None:
        after = step.recorded_result
        line("after", state_text(after.state, after.timers))
        for row in after.output[:_ROWS_SHOWN]:
            line("output", row_text(row))
    failure = step.recorded.failure
    if failure is not None:
        line("raised", f"{failure.error}: {failure.message}", "yellow")
    for difference in step.differences:
        out.print(Text(f"  {difference.what} differs", style="bold red"))
        out.print(
            Text(f"    - recorded {value_text(difference.recorded)}", style="red"), soft_wrap=True
        )
        out.print(
            Text(f"    + now      {value_text(difference.found)}", style="green"), soft_wrap=True
        )
    if not step.differences:
        same = "  as recorded" if step.error is None else "  fails as recorded"
        out.print(Text(same, style="green" if step.error is None else "bold red"))
    out.print()


def row_text(row: Any) -> str:
    """Return a row as text."""
    fields = zip(row.__fields__, row, strict=True)
    return ", ".join(f"{name}={one_text(value)}" for name, value in fields)


def state_text(state: Mapping[str, Any], timers: Sequence[int]) -> str:
    """Return the state of a key as text."""
    parts = [f"{name}={value!r}" for name, value in state.items()]
    if timers:
        parts.append(f"timers={list(timers)}")
    return "  ".join(parts) or "no state"


def one_text(value: Any) -> str:
    """Return one value as text."""
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else repr(value)


def value_text(value: Any) -> str:
    """Return one side of a difference as text."""
    if value is None or value == []:
        return "nothing"
    if isinstance(value, list) and any(hasattr(each, "__fields__") for each in value):
        return "; ".join(f"({row_text(each)})" for each in value)
    return value if isinstance(value, str) else repr(value)


def step_json(step: ReplayedStep) -> dict[str, object]:
    """Return a step in JSON."""
    task, failure = step.recorded.task, step.recorded.failure
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


def _dict(row: Any) -> dict[str, object]:
    return {name: plain(value) for name, value in zip(row.__fields__, row, strict=True)}


def plain(value: Any) -> Any:
    """Return a value as JSON can express it."""
    if hasattr(value, "__fields__"):
        return _dict(value)
    if isinstance(value, Mapping):
        if all(isinstance(name, str) for name in value):
            return {name: plain(each) for name, each in value.items()}
        return [[plain(name), plain(each)] for name, each in value.items()]
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)
