"""`statelog info`: describe a location.  `statelog report`: write an HTML page with its figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from statelog.cli import options
from statelog.cli.output import (
    open_location,
    plural,
    print_json,
    progress,
    say,
    size_text,
    utc,
    write_text,
)
from statelog.errors import UsageError
from statelog.extensions.report import PRICES, Prices, ReportPlan, Speeds, collect, page, texts
from statelog.extensions.report.summary import Summary, summarize
from statelog.runtime.clock import wall_clock_seconds
from statelog.store.location import is_known, normalize_url

_SCHEMES = {"gs": "gcs", "az": "azure"}
_STYLES = {"damage": "bold red", "attention": "yellow", "note": "dim"}
_LABEL_WIDTH = 13


def info(location: options.Location, as_json: options.Json = False) -> bool:
    """
    Describe a state location: its query, size, health, and the next commands to run.

    The command does not read the state itself. Exit status 1 if a checkpoint is damaged.

    Examples:
        statelog info s3://bucket/jobs/totals
        statelog info s3://bucket/jobs/totals --json
    """
    store = open_location(location)
    with progress("reading"):
        summary = summarize(store, location)
    if as_json:
        print_json(summary.to_json())
    else:
        _print(summary, location)
    return summary.figures.is_damaged


def _print(summary: Summary, location: str) -> None:
    say((f"{summary.figures.location}: {summary.kind}", "bold"))
    for label, text in _facts(summary):
        say((f"  {label:{_LABEL_WIDTH}}", "cyan"), text)
    for finding in summary.findings:
        say((f"  {finding.level:{_LABEL_WIDTH}}", _STYLES[finding.level]), finding.text)
    if not summary.findings:
        say((f"  {'findings':{_LABEL_WIDTH}}", "cyan"), "none")
    say(("next:", "bold"))
    for step in summary.next_steps(location):
        say(f"  {step}")


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    figures = summary.figures
    newest = summary.figures.newest
    if figures.query_id:
        yield "query", f"{figures.query_id}, {figures.delivery} delivery"
    for operator in summary.operators:
        yield "operator", f"{operator.name}, by {operator.key}"
        for variable in operator.variables:
            ttl = ""
            if variable.ttl_ms is not None:
                ttl = f", expires after {texts.duration(variable.ttl_ms)}"
            yield "", f"{variable.name}: {variable.kind} ({variable.columns}){ttl}"
    if newest is not None:
        batch = "" if newest.batch_id is None else f", micro-batch {newest.batch_id}"
        age = ""
        if newest.created_at_ms is not None:
            since_ms = max(0.0, wall_clock_seconds() * 1000 - newest.created_at_ms)
            age = f", {utc(newest.created_at_ms)} UTC ({texts.duration(since_ms)} ago)"
        yield "newest", f"checkpoint {newest.checkpoint_id}{batch}{age}"
    retained = sum(checkpoint.state == "retained" for checkpoint in figures.checkpoints)
    yield "checkpoints", f"{retained} of {len(figures.checkpoints):,} can be restored"
    if newest is not None:
        log = f"{size_text(newest.log_bytes or 0)} of log in {plural(newest.log_handles or 0, 'part')}"
        snapshots = f"{size_text(newest.full_snapshot_bytes or 0)} of snapshots"
        entries = f"{texts.count(newest.state_entries)} entries"
        yield (
            "state",
            f"{entries} in {texts.count(figures.key_groups)} key groups; {snapshots}, {log}",
        )
    objects = sum(kind.objects for kind in figures.stored)
    stored = size_text(sum(kind.size_bytes for kind in figures.stored))
    yield "stored", f"{plural(objects, 'object')}, {stored}"
    if figures.restart is not None:
        size = size_text(sum(part.size_bytes for part in figures.restart.parts))
        yield "restart", f"reads {plural(figures.restart.objects, 'object')}, {size}"
    if summary.claimed:
        yield "claimed", f"{summary.claimed}; it has not committed yet"
    for pin in summary.pins:
        yield "pinned", pin


def report(
    location: options.Location,
    *,
    to: Annotated[
        Path, typer.Option("--to", "-o", help="Write the page to this file.", metavar="FILE")
    ] = Path("report.html"),
    count_keys: Annotated[
        bool,
        typer.Option(
            "--count-keys/--no-count-keys",
            help="Count the keys in each key group, which requires reading the newest state.",
        ),
    ] = True,
    prices: Annotated[
        str | None,
        typer.Option(
            help=f"Price list: {', '.join(PRICES)}. Default: the list for the location's store."
        ),
    ] = None,
    put_price: Annotated[
        float | None,
        typer.Option(min=0, help="Price of 1,000 put requests, in dollars.", metavar="DOLLARS"),
    ] = None,
    get_price: Annotated[
        float | None,
        typer.Option(min=0, help="Price of 1,000 get requests, in dollars.", metavar="DOLLARS"),
    ] = None,
    storage_price: Annotated[
        float | None,
        typer.Option(
            min=0, help="Price of storing 1 GB for a month, in dollars.", metavar="DOLLARS"
        ),
    ] = None,
    latency: Annotated[
        float,
        typer.Option(
            min=0, help="Latency of a request to the store, in milliseconds.", metavar="MS"
        ),
    ] = Speeds().latency_ms,
    read_speed: Annotated[
        float, typer.Option(min=0.001, help="Network bandwidth of a task, in MB/s.", metavar="MB/S")
    ] = Speeds().read_mb_s,
    restore_speed: Annotated[
        float,
        typer.Option(
            min=0.001, help="Speed at which a task restores stored bytes, in MB/s.", metavar="MB/S"
        ),
    ] = Speeds().restore_mb_s,
    as_json: options.Json = False,
) -> bool:
    """
    Write an HTML report on the growth, restarts and cost of a location.

    The page shows how the state and the log grow; the duration, bytes, objects and retries of each
    stored checkpoint; the number of keys in each key group; what a restart reads; and what the
    object store costs. The page works offline. With --json, the command prints the figures instead
    of writing the page.  Exit status 1 if a checkpoint is damaged.

    Examples:
        statelog report s3://bucket/jobs/totals
        statelog report s3://bucket/jobs/totals --to totals.html --prices s3-express
    """
    store = open_location(location)
    chosen = _prices(location, prices).changed(put_price, get_price, storage_price)
    speeds = Speeds(latency_ms=latency, read_mb_s=read_speed, restore_mb_s=restore_speed)
    with progress("reading") as update:
        plan = ReportPlan(speeds=speeds, prices=chosen, with_keys=count_keys, progress=update)
        figures = collect(store, location, plan)
    if as_json:
        print_json(figures.to_json())
        return figures.is_damaged
    write_text(to, page(figures), store.url)
    for finding in figures.findings:
        say((finding.level, _STYLES[finding.level]), f" {finding.text}")
    checkpoints = plural(len(figures.checkpoints), "checkpoint")
    say(f"wrote {to} ({size_text(to.stat().st_size)}): {checkpoints} of {figures.location}")
    return figures.is_damaged


def _prices(location: str, name: str | None) -> Prices:
    """Return the price list of this name, or the one for the location's store."""
    if name is None:
        scheme = normalize_url(location).partition(":")[0] if is_known(location) else ""
        return PRICES[_SCHEMES.get(scheme, "s3")]
    if name not in PRICES:
        raise UsageError(f"--prices must be one of {', '.join(PRICES)}, not {name!r}")
    return PRICES[name]
