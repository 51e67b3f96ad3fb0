"""`statelog repair`: remove what is provably not needed; give up damaged checkpoints by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from typing import Annotated

import typer
from rich.text import Text

from statelog.cli.options import JsonLinesOption, LocationArgument
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    console,
    open_location,
    parse_duration,
    plural,
    print_error,
    print_json,
    progress,
    size_text,
    utc,
)
from statelog.extensions.operations.repair import (
    REASONS,
    GivenUp,
    RepairPlan,
    apply_repair,
    give_up_after,
    plan_give_up,
    plan_repair,
)
from statelog.store import ObjectStore


def repair(
    location: LocationArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--apply", help="Only list the repairs, or make them.")
    ] = True,
    min_age: Annotated[str, typer.Option(help="Keep younger objects: 90s, 30m, 1h, 7d.")] = "1h",
    give_up: Annotated[
        int | None,
        typer.Option(
            "--give-up-after",
            help="Make this older checkpoint the newest again, and give up all later ones.",
            min=0,
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Remove what is provably not needed; --apply does it.

    That is: left-over temporary objects and files of writes that were killed, metadata of checkpoints that an unfinished clean-up left, and objects of unfinished checkpoints.  Claims, unknown names and everything younger than --min-age are kept.

    Damaged checkpoints are never dropped by that.  --give-up-after N commits the state of checkpoint N again as the newest one, after all its objects were verified, and lists the checkpoints that are lost.  It fences a run that is active.  It does not take the sources back: for a query whose checkpointLocation exists, use statelog rewind instead.

    Exit status 1 if something cannot be repaired or could not be removed.
    """
    store = open_location(location)
    if give_up is not None:
        _give_up(store, give_up, dry_run=dry_run, as_json=as_json)
        raise typer.Exit(EXIT_OK)
    with progress("reading"):
        plan = plan_repair(
            store,
            min_age=parse_duration(min_age, "--min-age"),
            now=dt.datetime.fromtimestamp(time.time(), dt.UTC),
        )
    failed: tuple[str, ...] = ()
    reason = ""
    if not dry_run:
        with progress("removing"):
            report = apply_repair(store, plan)
        failed, reason = report.failed, report.reason
    if as_json:
        _print_json(plan, failed, dry_run=dry_run)
    else:
        _print(plan, failed, dry_run=dry_run)
    if failed:
        print_error(f"{plural(len(failed), 'object')} not removed: {reason}")
    raise typer.Exit(EXIT_FINDING if failed or plan.problems else EXIT_OK)


def _print_json(plan: RepairPlan, failed: tuple[str, ...], *, dry_run: bool) -> None:
    for each in plan.repairs:
        done = "would-remove" if dry_run else "failed" if each.path in failed else "removed"
        print_json({**dataclasses.asdict(each), "action": done, "because": REASONS[each.kind]})
    print_json(
        {
            "summary": {
                "dry_run": dry_run,
                "repairs": len(plan.repairs),
                "size_bytes": sum(each.size_bytes for each in plan.repairs),
                "too_young": plan.too_young,
                "failed": len(failed),
                "problems": list(plan.problems),
                "usable_id": plan.usable_id,
            }
        }
    )


def _print(plan: RepairPlan, failed: tuple[str, ...], *, dry_run: bool) -> None:
    out = console()
    for each in plan.repairs:
        verb = ("would remove", "yellow") if dry_run else ("removed", "red")
        if each.path in failed:
            verb = ("not removed", "bold red")
        line = Text.assemble(verb, f" {each.kind} ", each.path, f": {REASONS[each.kind]}")
        out.print(line, soft_wrap=True)
    for problem in plan.problems:
        out.print(Text.assemble(("kept", "bold"), f": {problem}"), soft_wrap=True)
    if plan.usable_id is not None:
        out.print(
            f"to continue without what is damaged, see: statelog repair --give-up-after "
            f"{plan.usable_id}, which lists what is lost; for a query use statelog rewind",
            markup=False,
            soft_wrap=True,
        )
    size = size_text(sum(each.size_bytes for each in plan.repairs))
    out.print(
        f"{plural(len(plan.repairs), 'object')} ({size}) {'to remove' if dry_run else 'removed'}, "
        f"{plan.too_young:,} too young",
        markup=False,
    )
    if dry_run and plan.repairs:
        out.print("This was a dry run; --apply removes them.")


def _give_up(store: ObjectStore, checkpoint_id: int, *, dry_run: bool, as_json: bool) -> None:
    with progress("verifying"):
        if dry_run:
            done = plan_give_up(store, checkpoint_id)
        else:
            done = give_up_after(store, checkpoint_id, lambda: int(time.time() * 1000))
    if as_json:
        _print_given_up_json(done, dry_run=dry_run)
        return
    out = console()
    for lost in done.lost:
        batch = "" if lost.batch_id is None else f", micro-batch {lost.batch_id}"
        when = f", made {utc(lost.created_at_ms)} UTC" if lost.created_at_ms is not None else ""
        out.print(
            Text.assemble(
                ("would give up" if dry_run else "gave up", "yellow" if dry_run else "red"),
                f" checkpoint {lost.checkpoint_id} ({lost.state.value}{batch}{when})",
            ),
            soft_wrap=True,
        )
    if done.committed_id is None:
        text = (
            f"All changes after checkpoint {checkpoint_id} would be lost, and a run that is active "
            "would be fenced. This was a dry run; --apply does it."
        )
    else:
        text = (
            f"checkpoint {done.committed_id} has the state of checkpoint {checkpoint_id} and is the "
            "newest now"
        )
    out.print(text, markup=False, soft_wrap=True)


def _print_given_up_json(done: GivenUp, *, dry_run: bool) -> None:
    for lost in done.lost:
        print_json(
            {
                "checkpoint_id": lost.checkpoint_id,
                "state": lost.state.value,
                "batch_id": lost.batch_id,
                "created_at_ms": lost.created_at_ms,
                "action": "would-give-up" if dry_run else "gave-up",
            }
        )
    print_json(
        {
            "summary": {
                "dry_run": dry_run,
                "kept": done.checkpoint_id,
                "lost": len(done.lost),
                "committed_id": done.committed_id,
            }
        }
    )
