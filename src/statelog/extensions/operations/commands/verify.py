"""`statelog verify`: verify retained checkpoints, remove orphans, discard damaged ones."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Collection
from functools import partial
from typing import Annotated

import typer

from statelog.checkpoint.history import Entries
from statelog.checkpoint.listing import CheckpointSummary
from statelog.checkpoint.verify import SoundCheckpoints, verify_location
from statelog.cli import options
from statelog.cli.output import (
    Change,
    open_location,
    parse_duration,
    plural,
    print_changes,
    print_error,
    print_json,
    progress,
    say,
    say_dry_run,
    size_text,
    utc,
)
from statelog.errors import UsageError
from statelog.extensions.operations.repair import (
    REASONS,
    Repair,
    apply_repair,
    give_up_after,
    plan_give_up,
    plan_repair,
)
from statelog.store import ObjectStore


def verify(
    location: options.Location,
    *,
    at_least: Annotated[
        int | None,
        typer.Option(
            help="Report a problem if the newest checkpoint is older than this one.",
            min=0,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Delete leftover objects instead of only verifying; requires --apply."
        ),
    ] = False,
    give_up: Annotated[
        int | None,
        typer.Option(
            "--give-up-after",
            metavar="CHECKPOINT",
            help="Make this older checkpoint the newest again, discarding all later ones; requires "
            "--apply.",
            min=0,
        ),
    ] = None,
    min_age: options.MinAge = "1h",
    apply: options.Apply = False,
    as_json: options.Json = False,
) -> bool:
    """
    Read and verify every object that retained checkpoints need, or repair the location.

    The command reads every object once, verifies every checksum, and compares the log of each
    checkpoint with the log of the previous one.  If it finds a problem, the command prints the
    newest undamaged checkpoint.  Neither checksums nor encryption can detect that the newest
    checkpoints were deleted: to check for that, pass the newest checkpoint that you know of to
    --at-least.

    --repair deletes objects that are provably unnecessary: temporary objects and files left by
    killed writes, checkpoint metadata from an interrupted clean-up, and objects of unfinished
    checkpoints.  It never deletes claims, unknown names, damaged checkpoints, or objects younger
    than --min-age.

    --give-up-after N verifies checkpoint N, commits its state again as the newest checkpoint, and
    lists the checkpoints that are lost.  This fences an active run.  It does not rewind the
    sources: if the query has a checkpointLocation, use `statelog rewind`.

    Exit status 1 if an object is damaged or missing, was written by a newer version of statelog,
    cannot be repaired, or could not be deleted.

    Examples:
        statelog verify s3://bucket/jobs/totals
        statelog verify s3://bucket/jobs/totals --repair --apply
        statelog verify s3://bucket/jobs/totals --give-up-after 41
    """
    if apply and not repair and give_up is None:
        raise UsageError(
            "--apply requires --repair or --give-up-after; verify alone changes nothing"
        )
    store = open_location(location)
    age = parse_duration(min_age, "--min-age")
    if give_up is not None:
        _give_up(store, give_up, apply=apply, as_json=as_json)
        return False
    if repair:
        return _repair(store, age, apply=apply, as_json=as_json)
    return _verify(store, at_least, as_json=as_json)


def _verify(store: ObjectStore, at_least: int | None, *, as_json: bool) -> bool:
    objects = size_bytes = change_sets = findings = 0
    sound = SoundCheckpoints()
    with progress("reading") as update:
        for problem in verify_location(store):
            objects += 1
            size_bytes += problem.size_bytes
            change_sets += problem.change_sets
            findings += bool(problem.problem)
            sound.add(problem)
            update(f"{plural(objects, 'object')} read, at {problem.path}")
            if as_json:
                print_json({**dataclasses.asdict(problem), "ok": not problem.problem})
            elif problem.problem:
                text = f" {problem.kind} {problem.path}: {problem.problem}"
                say((f"{problem.finding}", "bold red"), text)
    newest = sound.newest
    if at_least is not None:
        findings += _is_older(store, at_least, as_json=as_json)
    if as_json:
        summary = {
            "objects": objects,
            "size_bytes": size_bytes,
            "change_sets": change_sets,
            "findings": findings,
            "newest_sound": newest,
        }
        print_json({"summary": summary})
        return bool(findings)
    verdict = (
        (f"{plural(findings, 'finding')}", "bold red") if findings else ("all intact", "green")
    )
    sets = plural(change_sets, "change set")
    say(f"{plural(objects, 'object')} read ({size_text(size_bytes)}, {sets}): ", verdict)
    if findings:
        none = "no retained checkpoint is intact"
        say(none if newest is None else f"the newest intact checkpoint is {newest}")
    return bool(findings)


def _is_older(store: ObjectStore, at_least: int, *, as_json: bool) -> bool:
    """Report whether the newest checkpoint is older than one that is known to have existed."""
    newest = Entries(store).newest_id()
    if newest is not None and newest >= at_least:
        return False
    problem = (
        f"the newest checkpoint is {newest}, but checkpoint {at_least} is known to exist: later "
        "checkpoints were deleted, or the location was restored from a backup"
    )
    if as_json:
        print_json({"kind": "location", "path": "", "problem": problem, "ok": False})
    else:
        say(("missing", "bold red"), f" {problem}")
    return True


def _repair(store: ObjectStore, min_age: dt.timedelta, *, apply: bool, as_json: bool) -> bool:
    with progress("reading"):
        now = dt.datetime.fromtimestamp(time.time(), dt.UTC)
        plan = plan_repair(store, min_age=min_age, now=now)
    failed: tuple[str, ...] = ()
    reason = ""
    if apply:
        with progress("deleting"):
            report = apply_repair(store, plan)
        failed = report.failed
        reason = report.reason
    size_bytes = sum(repair.size_bytes for repair in plan.repairs)
    summary = {
        "repairs": len(plan.repairs),
        "size_bytes": size_bytes,
        "too_young": plan.too_young,
        "failed": len(failed),
        "problems": list(plan.problems),
        "usable_id": plan.usable_id,
    }
    print_changes(
        map(partial(_change, failed), plan.repairs), summary, apply=apply, as_json=as_json
    )
    if not as_json:
        for problem in plan.problems:
            say(("kept", "bold"), f": {problem}")
        if plan.usable_id is not None:
            say(
                f"To continue without the damaged checkpoints: statelog verify --give-up-after "
                f"{plan.usable_id}, which lists what is lost; for a query: statelog rewind"
            )
        counted = f"{plural(len(plan.repairs), 'object')} ({size_text(size_bytes)})"
        say(f"{counted} {'deleted' if apply else 'to delete'}, {plan.too_young:,} too young")
        if not apply and plan.repairs:
            say_dry_run()
    if failed:
        print_error(f"{plural(len(failed), 'object')} not deleted: {reason}")
    return bool(failed or plan.problems)


def _change(failed: Collection[str], repair: Repair) -> Change:
    because = REASONS[repair.kind]
    facts = {**dataclasses.asdict(repair), "because": because}
    action = "failed" if repair.path in failed else "delete"
    return Change(action, f"{repair.kind} {repair.path}: {because}", facts)


def _give_up(store: ObjectStore, checkpoint_id: int, *, apply: bool, as_json: bool) -> None:
    with progress("verifying"):
        if apply:
            report = give_up_after(store, checkpoint_id, lambda: int(time.time() * 1000))
        else:
            report = plan_give_up(store, checkpoint_id)
    summary = {
        "kept": report.checkpoint_id,
        "lost": len(report.lost),
        "committed_id": report.committed_id,
    }
    print_changes(map(_given_up, report.lost), summary, apply=apply, as_json=as_json)
    if as_json:
        return
    if report.committed_id is not None:
        newest = f"checkpoint {report.committed_id} is now the newest"
        say(f"{newest}, with the state of checkpoint {checkpoint_id}")
        return
    say(
        f"All changes after checkpoint {checkpoint_id} would be lost, and an active run would be "
        "fenced."
    )
    say_dry_run()


def _given_up(lost: CheckpointSummary) -> Change:
    batch = "" if lost.batch_id is None else f", micro-batch {lost.batch_id}"
    when = "" if lost.created_at_ms is None else f", committed {utc(lost.created_at_ms)} UTC"
    facts = {
        "checkpoint_id": lost.checkpoint_id,
        "state": lost.state.value,
        "batch_id": lost.batch_id,
        "created_at_ms": lost.created_at_ms,
    }
    text = f"checkpoint {lost.checkpoint_id} ({lost.state.value}{batch}{when})"
    return Change("give up", text, facts)
