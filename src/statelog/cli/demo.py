"""`statelog demo`: a streaming job that is killed and restarted, and its exact result."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from statelog import __version__, extras
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    PlainConsole,
    PlainTable,
    console,
    parse_duration,
    plural,
    print_json,
    size_text,
)
from statelog.errors import UsageError
from statelog.model import JsonObject
from statelog.redaction import redacted

if TYPE_CHECKING:
    from statelog.demo.run import DemoResult, Kill


_CORES_MAX = 4

_COLUMNS: Final = (
    ("checkpoint", 10),
    ("batch", 6),
    ("rows", 8),
    ("keys", 7),
    ("objects", 8),
    ("bytes", 11),
    ("ms", 7),
)
_TOP: Final = 5


def demo(
    source: Annotated[
        Path | None,
        typer.Option("--input", help="Folder of daily CSV files of order lines.", metavar="DIR"),
    ] = None,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill the job half-way and start it again.")
    ] = True,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON document; other output goes to standard error."
        ),
    ] = False,
    tasks_before: Annotated[int, typer.Option(min=1, max=128, help="Tasks of the first run.")] = 2,
    tasks_after: Annotated[int, typer.Option(min=1, max=128, help="Tasks after the kill.")] = 3,
    delivery: Annotated[
        str, typer.Option(help="staged: exactly once.  direct: at least once.")
    ] = "staged",
    location: Annotated[
        str | None,
        typer.Option(help="State location: an empty path or URL.  Default: a temporary one."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary folder.")] = False,
    orders: Annotated[int, typer.Option(min=1, help="Generated orders, without --input.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the generated orders.")] = 1,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Run on Spark Connect, with a server on this machine, and kill the query's "
            "process in it too.",
        ),
    ] = False,
    batches: Annotated[int, typer.Option(min=1, help="Target number of micro-batches.")] = 24,
    session_gap: Annotated[
        str, typer.Option(help="Pause that ends a session.", metavar="DURATION")
    ] = "30m",
) -> None:
    """
    Run a streaming job, kill it, restart it, and verify the result.

    Revenue, orders, sessions and last country of each customer are kept as state over a stream of order lines.
    Half-way all processes of the job receive SIGKILL; it restarts with another number of tasks.
    The result is compared with a plain Spark batch query, to the cent.  Exit status 1 if anything differs.
    """
    extras.require("the demonstration", "spark", "pyspark", "pandas", "google.protobuf")
    extras.require_spark("the demonstration")
    from statelog.demo.run import Demo, DemoPlan

    if delivery not in ("staged", "direct"):
        raise UsageError(f"--delivery must be staged or direct, not {delivery!r}")
    if connect:
        extras.require("--connect", "connect", *extras.PACKAGES["connect"])
        if delivery != "staged":
            raise UsageError("--connect needs --delivery staged: Connect cannot deliver directly")
    gap = parse_duration(session_gap).total_seconds()
    screen = PlainConsole(stderr=True, highlight=False) if as_json else console()
    with _temporary_folder(keep) as work:
        plan = DemoPlan(
            work=work,
            source=source,
            orders=orders,
            seed=seed,
            batches=batches,
            session_gap_seconds=gap,
            delivery=delivery,
            location=location,
            kill=kill,
            tasks_before=tasks_before,
            tasks_after=tasks_after,
            cores=min(os.cpu_count() or 1, _CORES_MAX),
            connect=connect,
        )
        try:
            with Show(screen) as show:
                result = Demo(plan, show).run()
        except KeyboardInterrupt:
            screen.print("interrupted: all processes of the job were stopped")
            raise
        show.result(result)
        if keep:
            screen.print(Text(f"kept: {work}", style="dim"), soft_wrap=True)
        if location or keep:
            hint = f"inspect it: statelog checkpoints {redacted(result.location)}"
            screen.print(Text(hint, style="dim"), soft_wrap=True)
    if as_json:
        print_json(
            {
                "statelog": __version__,
                "input": None if source is None else str(source),
                "delivery": delivery,
                "connect": connect,
                "tasks": {"before": tasks_before, "after": tasks_after if kill else None},
                "kept": str(work) if keep else None,
                **result.to_json(),
            }
        )
    raise typer.Exit(EXIT_OK if result.verdict.exact else EXIT_FINDING)


@contextmanager
def _temporary_folder(keep: bool) -> Iterator[Path]:
    """Create a folder that is deleted at the end, also after SIGTERM and SIGHUP."""

    def stop(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    work = Path(tempfile.mkdtemp(prefix="statelog-demo-"))
    try:
        yield work
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


class Show:
    """Prints the course of a demonstration: one line for each micro-batch, a bar below in a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[counted]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._seen: set[int] = set()
        self._batches = 0
        self._tasks = 0

    def __enter__(self) -> Show:
        self._progress.start()
        self._task = self._progress.add_task("preparing the input", total=None, counted="")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _print(self, *text: Text) -> None:
        for line in text:
            self._console.print(line, soft_wrap=True)

    def _update(self, **changes: Any) -> None:
        if self._task is not None:
            self._progress.update(self._task, **changes)

    def prepared(self, files: int, batches: int, location: str) -> None:
        """Print that the input is prepared."""
        self._batches = batches
        self._print(
            Text.assemble(
                ("input  ", "dim"), f"{files} files of order lines, {batches} micro-batches"
            ),
            Text.assemble(
                ("job    ", "dim"), "revenue, orders, sessions, last country by customer"
            ),
            Text.assemble(("state  ", "dim"), redacted(location)),
        )

    def starting(self, run: int, tasks: int) -> None:
        """Show that run 1 or 2 starts."""
        self._tasks = tasks
        self._update(description=f"run {run}: starting Spark", total=None)

    def started(self) -> None:
        """Print that Spark has started."""
        self._print(
            Text(),
            Text(f"running on {plural(self._tasks, 'task')}", style="bold"),
            Text("".join(name.rjust(width) for name, width in _COLUMNS), style="dim"),
        )
        self._update(description="running", total=self._batches)
        self._count()

    def _count(self) -> None:
        done = len(self._seen)
        self._update(completed=done, counted=f"{done} of {self._batches} micro-batches")

    def batch(self, run: int, progress: JsonObject) -> None:
        """Print the numbers of a micro-batch."""
        self._seen.add(progress["batch_id"])
        cells = (
            str(progress["checkpoint_id"]),
            str(progress["batch_id"]),
            f"{progress['rows']:,}",
            f"{progress['keys']:,}",
            str(progress["objects"]),
            size_text(progress["object_bytes"]),
            f"{progress['milliseconds']['total']:,.0f}",
        )
        line = Text("".join(c.rjust(width) for c, (_, width) in zip(cells, _COLUMNS, strict=True)))
        if progress["replayed"]:
            line.append("  committed before the kill: rows delivered again", style="yellow")
        elif progress["snapshots"]:
            line.append(f"  {plural(progress['snapshots'], 'snapshot')}", style="cyan")
        self._print(line)
        self._count()

    def killed(self, kill: Kill) -> None:
        """Print that the job was killed."""
        if not kill.in_batch:
            when = f"between micro-batches, after {kill.batch_id}"
        elif kill.committed:
            when = f"in micro-batch {kill.batch_id}, its checkpoint committed, its end not noted"
        else:
            when = f"in the middle of micro-batch {kill.batch_id}, its checkpoint not committed"
        count = _count(len(kill.processes), "process", "processes")
        self._print(
            Text.assemble(("killed ", "bold red"), when),
            Text(f"       SIGKILL to {count}: {_roles(kill)}", style="dim"),
        )

    def killed_worker(self, batch_id: int) -> None:
        """Print that the process of the query in the server was killed."""
        self._print(
            Text.assemble(
                ("killed ", "bold red"),
                f"the query's process in the Connect server, in micro-batch {batch_id}; "
                "the client starts the query again",
            )
        )

    def verifying(self) -> None:
        """Show that all input was processed, and that the verification begins."""
        self._update(description="asking Spark SQL for the batch answer", total=None, counted="")

    def result(self, result: DemoResult) -> None:
        """Print customers, numbers and the verdict."""
        self._top(result)
        self._numbers(result)
        self._verdict(result)

    def _top(self, result: DemoResult) -> None:
        table = PlainTable(
            box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold"
        )
        for name in ("customer", "revenue", "orders", "sessions", "lines", "last country"):
            left = name in ("customer", "last country")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for customer in result.verdict.top[:_TOP]:
            table.add_row(
                customer["customer"],
                f"{float(customer['revenue']):,.2f}",
                *(f"{customer[name]:,}" for name in ("orders", "sessions", "lines")),
                customer["country"],
            )
        self._print(Text(), Text("best customers", style="bold"))
        self._console.print(table)

    def _numbers(self, result: DemoResult) -> None:
        verdict, batches = result.verdict, result.micro_batches
        objects = sum(batch["objects"] for batch in batches)
        written = sum(batch["object_bytes"] for batch in batches)
        usual = statistics.median(batch["milliseconds"]["total"] for batch in batches)
        count = max(len(batches), 1)
        phases = ", ".join(
            f"{name.replace('_', ' ')} {seconds:.1f}" for name, seconds in result.phases.items()
        )
        self._print(
            _fact(
                "input", f"{verdict.lines:,} lines, {verdict.dropped_lines:,} without a customer"
            ),
            _fact(
                "state",
                f"{objects / count:.1f} objects and {size_text(written // count)} per micro-batch, "
                f"{usual:,.0f} ms for a usual one",
            ),
            _fact("seconds", f"{sum(result.phases.values()):.1f} ({phases})"),
        )

    def _verdict(self, result: DemoResult) -> None:
        verdict = result.verdict
        checked = [
            _fact(
                "answer",
                f"{verdict.customers:,} customers, revenue {float(verdict.revenue):,.2f}, "
                f"{verdict.orders:,} orders, {verdict.sessions:,} sessions",
            ),
            _fact(
                "output",
                f"{_count(verdict.batches, 'batch', 'batches')} by id, in "
                f"{_count(verdict.deliveries, 'delivery', 'deliveries')}",
            ),
            _fact(
                "state",
                f"{verdict.state_customers:,} customers read back from checkpoint "
                f"{verdict.state_checkpoint}",
            ),
        ]
        self._print(Text(), Text("against a plain Spark batch query", style="bold"), *checked)
        if verdict.exact:
            self._print(
                Text("exact: no customer differs, no batch is missing or twice", "bold green")
            )
            return
        self._print(Text(plural(verdict.difference_count, "difference"), "bold red"))
        self._print(*(Text(f"  {text}") for text in verdict.differences))
        if verdict.difference_count > len(verdict.differences):
            more = verdict.difference_count - len(verdict.differences)
            self._print(Text(f"  and {more:,} more", style="dim"))


def _fact(name: str, text: str) -> Text:
    return Text.assemble((f"  {name:<9}", "dim"), text)


def _count(count: int, noun: str, many: str) -> str:
    return f"{count:,} {noun if count == 1 else many}"


def _roles(kill: Kill) -> str:
    """Return the killed processes by their role in Spark."""
    ids = {process.pid for process in kill.processes}
    jvms = {process.pid for process in kill.processes if process.name == "java"}
    roles: dict[str, list[str]] = {"driver": [], "JVM": [], "daemon": [], "workers": []}
    for process in sorted(kill.processes, key=lambda process: process.pid):
        if process.pid in jvms:
            role = "JVM"
        elif process.parent not in ids:
            role = "driver"
        else:
            role = "daemon" if process.parent in jvms else "workers"
        roles[role].append(str(process.pid))
    return ", ".join(f"{role} {' '.join(pids)}" for role, pids in roles.items() if pids)
