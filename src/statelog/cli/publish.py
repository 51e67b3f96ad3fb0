"""`statelog publish`: state as a table that any engine reads, one version for each checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from statelog.cli.options import (
    CheckpointOption,
    JsonLinesOption,
    LocationArgument,
    OperatorOption,
)
from statelog.cli.output import (
    console,
    open_location,
    plural,
    print_error,
    print_json,
    progress,
)
from statelog.errors import StoreError, UnavailableError, UsageError
from statelog.extensions.publish.publisher import RETAIN, PublishReport, TablePublisher, open_table
from statelog.runtime.clock import pause, wall_clock_seconds


def publish(
    location: LocationArgument,
    *,
    iceberg: Annotated[
        str | None,
        typer.Option(
            metavar="CATALOG.NAMESPACE.TABLE",
            help="The Iceberg table, created if it is missing; the catalog is part of pyiceberg's configuration.",
        ),
    ] = None,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Instead of --iceberg: path or URL of the folder of a Delta table, created if it is missing.",
        ),
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="State variable, a column; may be given several times. All by default."),
    ] = None,
    checkpoint: CheckpointOption = None,
    operator: OperatorOption = None,
    retain: Annotated[
        int, typer.Option(help="Versions of the table to retain besides those with a tag.", min=1)
    ] = RETAIN,
    catalog_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Property of Iceberg's catalog; may be given several times."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option(help="Publish each newer checkpoint too, until interrupted.")
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds between two looks for a newer checkpoint.", min=0.01)
    ] = 1.0,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Publish a checkpoint as the newest version of an Iceberg or a Delta table.

    The table contains a row per key and a column per state variable.  Each publication replaces the rows of the key groups that changed.  Tags of LOCATION are tags of an Iceberg table.  A call for a checkpoint that is a version of the table already changes nothing.
    """
    if follow and checkpoint is not None:
        raise UsageError("--follow publishes the newest checkpoints; leave --checkpoint out")
    with TablePublisher(
        open_location(location),
        open_table(iceberg, delta, catalog_options=_options(catalog_option or ())),
        variables=state or None,
        operator=operator,
        retain=retain,
    ) as publisher:
        with progress("publishing"):
            began_s = wall_clock_seconds()
            report = publisher.publish(checkpoint)
        _show(report, wall_clock_seconds() - began_s, as_json)
        while follow:
            pause(interval)
            _follow(publisher, as_json)


def _follow(publisher: TablePublisher, as_json: bool) -> None:
    """Publish what is new; a failure of a store or a catalog is reported, and tried again."""
    began_s = wall_clock_seconds()
    try:
        report = publisher.refresh()
    except (StoreError, UnavailableError) as error:
        print_error(str(error))
        return
    if report is not None:
        _show(report, wall_clock_seconds() - began_s, as_json)


def _show(report: PublishReport, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "table": report.table,
                "checkpoint_id": report.checkpoint_id,
                "published": report.published,
                "checkpoints": report.checkpoints,
                "versions": {str(each): at for each, at in report.versions.items()},
                "tags": report.tags,
                "rows": report.row_count,
                "written_rows": report.written_rows,
                "seconds": round(seconds, 3),
            }
        )
        return
    line = (
        f"{report.table} contains checkpoint {report.checkpoint_id} already; nothing was published"
    )
    if report.published:
        ids = ", ".join(map(str, report.published))
        noun = "checkpoint" if len(report.published) == 1 else "checkpoints"
        line = (
            f"{report.table}: {noun} {ids} published in {seconds:.2f} s, "
            f"{plural(report.row_count, 'row')}, {report.written_rows:,} written"
        )
    console().print(line, markup=False, soft_wrap=True)


def _options(pairs: Sequence[str]) -> dict[str, str]:
    """Return the properties of the catalog."""
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise UsageError("--catalog-option takes KEY=VALUE; one of them lacks '='")
        options[key] = value
    return options
