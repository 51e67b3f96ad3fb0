"""`statelog publish`: publish state as a table, with one version per checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from statelog.cli import options
from statelog.cli.output import open_location, plural, print_error, print_json, progress, say
from statelog.errors import StoreError, UnavailableError, UsageError
from statelog.extensions.publish.publisher import RETAIN, PublishReport, TablePublisher, open_table
from statelog.runtime.clock import pause, wall_clock_seconds


def publish(
    location: options.Location,
    *,
    iceberg: Annotated[
        str | None,
        typer.Option(
            metavar="CATALOG.NAMESPACE.TABLE",
            help="Name of the Iceberg table, which is created if it does not exist. Configure the catalog in the same way as for pyiceberg.",
        ),
    ] = None,
    delta: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Folder of the Delta table (a path or URL), which is created if it does not exist; cannot be combined with --iceberg.",
        ),
    ] = None,
    variable: options.Variables = None,
    checkpoint: options.Checkpoint = None,
    operator: options.Operator = None,
    retain: Annotated[
        int,
        typer.Option(
            help="Retain this many versions of the table, plus all tagged versions.", min=1
        ),
    ] = RETAIN,
    catalog_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Property of the Iceberg catalog, as KEY=VALUE. Can be repeated.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Keep publishing newer checkpoints until you interrupt the command."
        ),
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds between checks for a newer checkpoint.", min=0.01)
    ] = 1.0,
    as_json: options.Json = False,
) -> None:
    """
    Publish a checkpoint as the newest version of an Iceberg or Delta table.

    The table contains one row per key and one column per state variable.  Each publication replaces
    the rows of the key groups that changed.  The tags of LOCATION are also copied to an Iceberg
    table.  Nothing changes if the table already contains the checkpoint.

    Examples:
        statelog publish s3://bucket/jobs/totals --iceberg prod.jobs.totals
        statelog publish s3://bucket/jobs/totals --delta s3://bucket/tables/totals --variable total
        statelog publish s3://bucket/jobs/totals --iceberg prod.jobs.totals --follow --interval 60
    """
    if follow and checkpoint is not None:
        raise UsageError("--follow publishes the newest checkpoints; omit --checkpoint")
    with TablePublisher(
        open_location(location),
        open_table(iceberg, delta, catalog_options=_options(catalog_option or ())),
        variables=variable or None,
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
    """Publish newer checkpoints; if a store or catalog fails, print the error and retry."""
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
                "versions": {
                    str(version): checkpoint_id
                    for version, checkpoint_id in report.versions.items()
                },
                "tags": report.tags,
                "rows": report.row_count,
                "written_rows": report.written_rows,
                "seconds": round(seconds, 3),
            }
        )
        return
    if not report.published:
        contains = f"{report.table} already contains checkpoint {report.checkpoint_id}"
        say(f"{contains}; nothing was published")
        return
    ids = ", ".join(map(str, report.published))
    noun = "checkpoint" if len(report.published) == 1 else "checkpoints"
    say(
        f"{report.table}: {noun} {ids} published in {seconds:.2f} s, "
        f"{plural(report.row_count, 'row')}, {report.written_rows:,} written"
    )


def _options(pairs: Sequence[str]) -> dict[str, str]:
    """Return the properties of the catalog."""
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not key or not separator:
            raise UsageError("--catalog-option takes KEY=VALUE; got an option without '='")
        options[key] = value
    return options
