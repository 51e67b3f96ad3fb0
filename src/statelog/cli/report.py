"""`statelog report`: one HTML page with the figures of a location."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from statelog.cli.options import LocationArgument
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    FINDING_STYLES,
    console,
    open_location,
    plural,
    print_json,
    progress,
    size_text,
    write_text,
)
from statelog.errors import UsageError
from statelog.extensions.report import PRICES, Figures, Prices, ReportPlan, Speeds, collect, page
from statelog.store.location import is_known, normalize_url

_SCHEMES = {"gs": "gcs", "az": "azure"}


def report(
    location: LocationArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write.", metavar="FILE")
    ] = Path("report.html"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as one JSON document, and no page.")
    ] = False,
    keys: Annotated[
        bool,
        typer.Option(
            "--keys/--no-keys", help="Count keys by key group, which reads the newest state."
        ),
    ] = True,
    prices: Annotated[
        str | None,
        typer.Option(
            help=f"Price list: {', '.join(PRICES)}. Default: that of the location's store."
        ),
    ] = None,
    put_price: Annotated[
        float | None, typer.Option(min=0, help="Dollars for 1,000 puts.", metavar="DOLLARS")
    ] = None,
    get_price: Annotated[
        float | None, typer.Option(min=0, help="Dollars for 1,000 gets.", metavar="DOLLARS")
    ] = None,
    storage_price: Annotated[
        float | None, typer.Option(min=0, help="Dollars for 1 GB and month.", metavar="DOLLARS")
    ] = None,
    latency: Annotated[
        float, typer.Option(min=0, help="Time of a request to the store.", metavar="MS")
    ] = Speeds().latency_ms,
    read_speed: Annotated[
        float, typer.Option(min=0.001, help="Network bandwidth of a task.", metavar="MB/S")
    ] = Speeds().read_mb_s,
    restore_speed: Annotated[
        float, typer.Option(min=0.001, help="Stored bytes a task restores.", metavar="MB/S")
    ] = Speeds().restore_mb_s,
) -> None:
    """
    Write one HTML page with the figures of a state location.

    Growth of state and log, duration, bytes, objects and retries of the stored checkpoints, keys by key
    group, what a restart reads, and the bill of the object store.  The page needs no network.
    Exit status 1 if a checkpoint is damaged.
    """
    store = open_location(location)
    chosen = _prices(location, prices).changed(put_price, get_price, storage_price)
    speeds = Speeds(latency_ms=latency, read_mb_s=read_speed, restore_mb_s=restore_speed)
    with progress("reading") as update:
        plan = ReportPlan(speeds=speeds, prices=chosen, with_keys=keys, progress=update)
        figures = collect(store, location, plan)
    if as_json:
        print_json(figures.to_json())
    else:
        write_text(output, page(figures), store.url)
        _print(figures, output)
    raise typer.Exit(EXIT_FINDING if figures.is_damaged else EXIT_OK)


def _prices(location: str, name: str | None) -> Prices:
    """Return the price list of that name, or the one of the location's store."""
    if name is None:
        scheme = normalize_url(location).partition(":")[0] if is_known(location) else ""
        return PRICES[_SCHEMES.get(scheme, "s3")]
    if name not in PRICES:
        raise UsageError(f"--prices must be one of {', '.join(PRICES)}, not {name!r}")
    return PRICES[name]


def _print(figures: Figures, output: Path) -> None:
    out = console()
    for finding in figures.findings:
        line = Text.assemble((finding.level, FINDING_STYLES[finding.level]), f" {finding.text}")
        out.print(line, soft_wrap=True)
    size = size_text(output.stat().st_size)
    checkpoints = plural(len(figures.checkpoints), "checkpoint")
    out.print(Text(f"wrote {output} ({size}): {checkpoints} of {figures.location}"), soft_wrap=True)
