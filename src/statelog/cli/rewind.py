"""`statelog rewind`: rewind the source offsets and the state of a query to one micro-batch."""

from __future__ import annotations

import datetime as dt
import time
from typing import Annotated

import typer
from rich.text import Text

from statelog.checkpoint.query_files import StoredQuery
from statelog.cli.options import JsonLinesOption
from statelog.cli.output import (
    EXIT_OK,
    console,
    open_location,
    parse_duration,
    plural,
    print_json,
    utc,
)
from statelog.errors import CheckpointError, UsageError
from statelog.extensions.operations.rewind import (
    RewindPlan,
    RewindPoint,
    apply_rewind,
    plan_rewind,
    rewind_points,
)
from statelog.store import ObjectStore, open_query_files
from statelog.store.paths import STATE_FOLDER


def rewind(
    checkpoint_location: Annotated[
        str, typer.Argument(help="The query's checkpointLocation: a path or URL.")
    ],
    to: Annotated[
        int | None,
        typer.Option(help="The last micro-batch to keep. Without it: list the possible ones."),
    ] = None,
    state_location: Annotated[
        str | None,
        typer.Option(help="The query's stateLocation, if it is not <checkpointLocation>/statelog."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--apply", help="Only list the changes, or make them.")
    ] = True,
    min_age: Annotated[
        str,
        typer.Option(help="Refuse if Spark wrote a micro-batch more recently: 90s, 30m, 1h, 7d."),
    ] = "1m",
    as_json: JsonLinesOption = False,
) -> None:
    """
    Rewind source offsets and state of a stopped query to one micro-batch; --apply does it.

    The state after batch --to becomes the newest checkpoint, and Spark's files of later batches are
    deleted (offsets, commits, and the lists of file sources), so that the query plans and reads
    them again.  A run that is still active is fenced: it fails at its next commit.  Repeat an
    interrupted rewind with the same command.

    A sink that stores batch ids must drop those after --to.  Exit status 1 if the rewind is not
    possible: the checkpoint is not retained, the offsets are missing or do not match the state,
    or a run seems to be active.
    """
    query = StoredQuery(open_query_files(checkpoint_location))
    query.query_id()
    state = _open_state(checkpoint_location, state_location)
    if to is None:
        if not dry_run:
            raise UsageError("--apply needs --to: the last micro-batch to keep")
        _print_points(rewind_points(query, state), as_json)
        raise typer.Exit(EXIT_OK)
    if to < 0:
        raise UsageError(f"--to is {to}; the number of a micro-batch is at least 0")
    plan = plan_rewind(query, state, to)
    age = _age(query)
    is_young = age is not None and age < parse_duration(min_age, "--min-age")
    if dry_run:
        _print_plan(plan, as_json, applied=None)
        if is_young and not as_json:
            console().print(
                f"Spark wrote a micro-batch {_seconds(age)} ago. Stop the query before --apply; "
                f"--apply waits for {min_age} without one (--min-age).",
                soft_wrap=True,
            )
        raise typer.Exit(EXIT_OK)
    if is_young:
        raise CheckpointError(
            f"Spark wrote a micro-batch {_seconds(age)} ago, so the query may be running. Stop it, "
            f"and wait until that is {min_age} ago; or use --min-age 0s if it has certainly ended. "
            "Nothing was changed",
            reason="active",
        )
    goes_on_from = plan.checkpoint_id
    if plan.changes_state or plan.files:
        goes_on_from = apply_rewind(query, state, plan, lambda: time.time_ns() // 1_000_000)
    _print_plan(plan, as_json, applied=goes_on_from)
    raise typer.Exit(EXIT_OK)


def _open_state(checkpoint_location: str, state_location: str | None) -> ObjectStore:
    if state_location is not None:
        return open_location(state_location)
    try:
        return open_location(f"{checkpoint_location.rstrip('/')}/{STATE_FOLDER}")
    except UsageError as error:
        raise UsageError(
            f"{error}. Pass the query's stateLocation with --state-location"
        ) from error


def _age(query: StoredQuery) -> dt.timedelta | None:
    written = query.last_written()
    return None if written is None else dt.datetime.fromtimestamp(time.time(), dt.UTC) - written


def _seconds(age: dt.timedelta | None) -> str:
    return f"{0 if age is None else max(0, round(age.total_seconds()))} s"


def _print_points(points: list[RewindPoint], as_json: bool) -> None:
    out = console()
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
        text = Text(
            f"batch {point.batch_id}: checkpoint {point.checkpoint_id}, committed "
            f"{utc(point.created_at_ms)} UTC"
        )
        if point.problem:
            text.append(f"; not possible: {point.problem}", "yellow")
        out.print(text, soft_wrap=True)
    if not as_json:
        out.print("Choose one with --to to see what a rewind to it would change.")


def _print_plan(plan: RewindPlan, as_json: bool, applied: int | None) -> None:
    done = applied is not None
    if as_json:
        for path in plan.files:
            print_json({"path": path, "action": "deleted" if done else "would-delete"})
        print_json(
            {
                "summary": {
                    "dry_run": not done,
                    "batch_id": plan.batch_id,
                    "checkpoint_id": plan.checkpoint_id,
                    "newest_checkpoint_id": plan.newest_id,
                    "newest_batch_id": plan.newest_batch_id,
                    "changes_state": plan.changes_state,
                    "goes_on_from": applied,
                    "files": len(plan.files),
                    "input_files": plan.input_files,
                    "missing_files": list(plan.missing_files),
                }
            }
        )
        return
    out = console()
    if not plan.files and not plan.changes_state:
        out.print(f"The query is at batch {plan.batch_id} already; there is nothing to do.")
        return
    verb = ("deleted", "red") if done else ("would delete", "yellow")
    for path in plan.files:
        out.print(Text.assemble(verb, " ", path), soft_wrap=True)
    if plan.changes_state:
        given_up = "were given up" if done else "would be given up"
        out.print(
            f"State: checkpoint {plan.checkpoint_id} (after batch {plan.batch_id}); later checkpoints, "
            f"up to {plan.newest_id}, {given_up}.",
            soft_wrap=True,
        )
    else:
        out.print(f"State: already that of checkpoint {plan.checkpoint_id}; it is kept.")
    out.print(
        f"Spark: batch {plan.batch_id + 1} is planned next (planned so far: up to "
        f"{plan.newest_batch_id}); {plural(plan.input_files, 'input file')} read again.",
        soft_wrap=True,
    )
    for path in plan.missing_files:
        out.print(Text(f"missing, its rows cannot be read again: {path}", "yellow"), soft_wrap=True)
    if not done:
        out.print("This was a dry run; --apply makes the changes. Stop the query before.")
