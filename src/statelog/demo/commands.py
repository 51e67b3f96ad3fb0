"""`statelog demo`: kills and restarts a streaming job, and checks that its result is exact."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from statelog import __version__, extras
from statelog.cli import options
from statelog.cli.output import (
    PlainConsole,
    console,
    plural,
    print_json,
    size_text,
)
from statelog.model import JsonObject
from statelog.redaction import redacted

_COLUMNS: Final = "checkpoint batch    rows    keys objects       bytes     ms"
_DIFFERENCES_MAX: Final = 20


def demo(
    location: Annotated[
        str | None,
        typer.Option(
            help="State location: a path or URL where nothing exists yet. Default: a temporary folder."
        ),
    ] = None,
    tasks_after: Annotated[
        int,
        typer.Option(
            min=1, max=128, help="Number of tasks that the job runs with after the restart."
        ),
    ] = 3,
    orders: Annotated[int, typer.Option(min=1, help="Number of orders in the input.")] = 10_000,
    batches: Annotated[int, typer.Option(min=4, help="Number of micro-batches.")] = 24,
    as_json: options.Json = False,
) -> bool:
    """
    Run a streaming job, kill it, restart it, and verify the result.

    The job reads orders and keeps the revenue, orders, sessions and last country of each customer
    as state. Halfway through, the command kills all processes of the job with SIGKILL, then
    restarts the job with a different number of tasks.  The command compares the result, to the
    cent, with the result of a plain Spark batch query. With --json, it prints progress on standard
    error.  Exit status 1 if anything differs.

    Examples:
        statelog demo
        statelog demo --location /tmp/demo-state --tasks-after 8
    """
    extras.require("the demonstration", "spark", "pyspark", "pandas", "google.protobuf")
    extras.require_spark("the demonstration")
    from statelog.demo.process import TASKS_BEFORE, run_demo

    for number in (signal.SIGTERM, signal.SIGHUP):  # the folder is deleted then, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    screen = PlainConsole(stderr=True, highlight=False) if as_json else console()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="statelog-demo-", ignore_cleanup_errors=True) as folder:
        place = location or f"{folder}/state"
        screen.print(Text.assemble(("state  ", "dim"), redacted(place)), soft_wrap=True)
        with screen.status("writing the input") as status:
            show = _Show(screen, status, batches)
            try:
                run_demo(
                    Path(folder),
                    place,
                    show,
                    tasks_after=tasks_after,
                    orders=orders,
                    batches=batches,
                )
            except KeyboardInterrupt:
                screen.print("interrupted; all processes of the job were stopped")
                raise
    if location:
        hint = f"inspect it: statelog checkpoints {redacted(location)}"
        screen.print(Text(hint, style="dim"), soft_wrap=True)
    if as_json:
        print_json(
            {
                "statelog": __version__,
                "location": redacted(place),
                "tasks": {"before": TASKS_BEFORE, "after": tasks_after},
                "kill": show.kill,
                "micro_batches": show.micro_batches,
                "seconds": round(time.monotonic() - begin, 3),
                **show.result,
            }
        )
    return not show.result["exact"]


class _Show:
    """Prints a demonstration, with one line per micro-batch, and collects its JSON."""

    def __init__(self, screen: Console, status: Status, batches: int) -> None:
        self._screen = screen
        self._status = status
        self._batches = batches
        self._run = self._tasks = 0
        self.micro_batches: list[JsonObject] = []
        self.kill: JsonObject = {}
        self.result: JsonObject = {}

    def __call__(self, message: JsonObject) -> None:
        """Print a message from the demonstration."""
        match message:
            case {"event": "starting", "run": run, "tasks": tasks}:
                self._run = run
                self._tasks = tasks
                self._status.update(f"run {run}: starting Spark")
            case {"event": "session"}:
                self._print()
                self._print((f"running on {plural(self._tasks, 'task')}", "bold"))
                self._print((_COLUMNS, "dim"))
            case {"event": "batch", "progress": progress}:
                self._batch(progress)
            case {"event": "killed", **kill}:
                self.kill = kill
                outcome = "committed" if kill["committed"] else "not committed"
                where = f"in micro-batch {kill['batch_id']}, its checkpoint {outcome}; SIGKILL to "
                self._print(("killed ", "bold red"), where, ", ".join(kill["processes"]))
            case {"event": "finished"}:
                self._status.update("asking Spark SQL for the batch answer")
            case {"event": "checked", **result}:
                self.result = result
                self._verdict(result)
            case _:
                pass

    def _print(self, *parts: str | tuple[str, str]) -> None:
        self._screen.print(Text.assemble(*parts), soft_wrap=True)

    def _batch(self, progress: JsonObject) -> None:
        self.micro_batches.append({"run": self._run, **progress})
        count = progress["batch_id"] + 1
        self._status.update(f"run {self._run}: {count} of {self._batches} micro-batches")
        milliseconds = progress["milliseconds"]["total"]
        line = (
            f"{progress['checkpoint_id']:10}{progress['batch_id']:6}{progress['rows']:8,}"
            f"{progress['keys']:8,}{progress['objects']:8}{size_text(progress['object_bytes']):>12}"
            f"{milliseconds:7,.0f}"
        )
        note = "  committed before the kill: rows delivered again" if progress["replayed"] else ""
        self._print(line, (note, "yellow"))

    def _verdict(self, result: JsonObject) -> None:
        answer = (
            f"{plural(result['customers'], 'customer')}, revenue {float(result['revenue']):,.2f}, "
            f"{result['orders']:,} orders, {plural(result['sessions'], 'session')}"
        )
        self._print()
        self._print(("against a plain Spark batch query", "bold"))
        self._print(("  answer   ", "dim"), answer)
        self._print(("  output   ", "dim"), f"{result['batches']} micro-batches")
        self._print(("  state    ", "dim"), f"read back from checkpoint {result['checkpoint']}")
        if result["exact"]:
            self._print(
                (
                    "exact: no customer differs, no micro-batch is missing or repeated",
                    "bold green",
                )
            )
            return
        self._print((plural(result["difference_count"], "difference"), "bold red"))
        for difference in result["differences"]:
            self._print(f"  {difference}")
        more = result["difference_count"] - len(result["differences"])
        if more:
            self._print((f"  and {more:,} more", "dim"))
