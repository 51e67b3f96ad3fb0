"""`statelog demo`: a streaming job that is killed and restarted, and its exact result."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.text import Text

from statelog import __version__, extras
from statelog.cli.demo_show import Show
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    PlainConsole,
    console,
    parse_duration,
    print_json,
)
from statelog.errors import UsageError
from statelog.redaction import redacted

_CORES_MAX = 4


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
