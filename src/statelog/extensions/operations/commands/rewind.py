"""`statelog rewind`: rewind a query's source offsets and state to one micro-batch."""

from __future__ import annotations

from typing import Annotated

import typer

from statelog.cli import options
from statelog.cli.output import (
    Change,
    parse_duration,
    plural,
    print_changes,
    print_json,
    say,
    say_dry_run,
    utc,
)
from statelog.errors import UsageError
from statelog.extensions.operations import rewind as operation
from statelog.extensions.operations.rewind import RewindPoint, RewindReport


def rewind(
    checkpoint_location: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT_LOCATION", help="The query's checkpointLocation: a path or URL."
        ),
    ],
    *,
    batch_id: Annotated[
        int | None,
        typer.Option(
            help="Last micro-batch to keep. Omit this option to list the micro-batches.",
            min=0,
        ),
    ] = None,
    state_location: Annotated[
        str | None,
        typer.Option(help="The query's stateLocation. Default: CHECKPOINT_LOCATION/statelog."),
    ] = None,
    min_idle: Annotated[
        str,
        typer.Option(
            help="Reject --apply if Spark planned a micro-batch less than this long ago, such as 90s, 30m, 1h or 7d."
        ),
    ] = "1m",
    apply: options.Apply = False,
    as_json: options.Json = False,
) -> None:
    """
    Rewind a stopped query's source offsets and state to one micro-batch.

    The state after the micro-batch becomes the newest checkpoint.  The command deletes Spark's
    files for later micro-batches (offsets, commits, and the file lists of file sources), so the
    query plans and reads those batches again.  A run that is still active is fenced and fails at
    its next commit.  If the command is interrupted, run it again with the same arguments.

    If the sink stores batch ids, delete the ids of later micro-batches from it.  Exit status 1 if
    the rewind is not possible: the checkpoint is not retained, the offsets are missing or do not
    match the state, or a run seems to be active.

    Examples:
        statelog rewind s3://bucket/queries/totals
        statelog rewind s3://bucket/queries/totals --batch-id 41
        statelog rewind s3://bucket/queries/totals --batch-id 41 --apply
    """
    idle = parse_duration(min_idle, "--min-idle")
    if batch_id is None:
        if apply:
            raise UsageError("--apply requires --batch-id: the last micro-batch to keep")
        query, state = operation.open_stopped_query(checkpoint_location, state_location)
        _print_points(operation.rewind_points(query, state), as_json)
        return
    report = operation.rewind(
        checkpoint_location, batch_id, state_location=state_location, min_idle=idle, apply=apply
    )
    summary = {
        "batch_id": report.batch_id,
        "checkpoint_id": report.checkpoint_id,
        "newest_checkpoint_id": report.newest_id,
        "newest_batch_id": report.newest_batch_id,
        "changes_state": report.changes_state,
        "continues_from": report.continues_from,
        "files": len(report.files),
        "input_files": report.input_files,
        "missing_files": list(report.missing_files),
    }
    changes = (Change("delete", path, {"path": path}) for path in report.files)
    print_changes(changes, summary, apply=apply, as_json=as_json)
    if as_json:
        return
    _print(report)
    if not apply and report.idle is not None and report.idle < idle:
        say(
            f"Spark planned a micro-batch {report.idle.total_seconds():.0f} s ago; --apply is rejected "
            f"until that is {min_idle} ago (--min-idle)."
        )


def _print_points(points: list[RewindPoint], as_json: bool) -> None:
    for point in points:
        if as_json:
            print_json(
                {
                    "batch_id": point.batch_id,
                    "checkpoint_id": point.checkpoint_id,
                    "created_at_ms": point.created_at_ms,
                    "problem": point.problem,
                }
            )
            continue
        text = f"batch {point.batch_id}: checkpoint {point.checkpoint_id}, committed "
        problem = f"; cannot be chosen: {point.problem}" if point.problem else ""
        say(f"{text}{utc(point.created_at_ms)} UTC", (problem, "yellow"))
    if not as_json:
        say("Choose a batch with --batch-id to see what a rewind would change.")


def _print(report: RewindReport) -> None:
    is_applied = report.continues_from is not None
    if not report.files and not report.changes_state:
        say(f"The query is already at batch {report.batch_id}; there is nothing to do.")
        return
    if report.changes_state:
        given_up = "were discarded" if is_applied else "would be discarded"
        say(
            f"State: checkpoint {report.checkpoint_id} (after batch {report.batch_id}); later checkpoints, "
            f"up to {report.newest_id}, {given_up}."
        )
    else:
        say(f"State: unchanged; it is already that of checkpoint {report.checkpoint_id}.")
    say(
        f"Spark: batch {report.batch_id + 1} is planned next (planned so far: up to "
        f"{report.newest_batch_id}); {plural(report.input_files, 'input file')} read again."
    )
    for path in report.missing_files:
        say((f"missing, so its rows cannot be read again: {path}", "yellow"))
    if not is_applied:
        say_dry_run(stop_query=True)
