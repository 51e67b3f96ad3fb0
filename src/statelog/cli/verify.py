"""
The objects of a location.

`statelog verify` reads and verifies all that retained checkpoints need.  `statelog gc` lists, and on
request deletes, the objects that no retained checkpoint needs.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from typing import Annotated

import typer
from rich.text import Text

from statelog.checkpoint.audit import audited
from statelog.checkpoint.clean_up import CleanUpReport, collect_garbage
from statelog.checkpoint.history import Entries
from statelog.checkpoint.verify import SoundCheckpoints, verify_location
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
)
from statelog.redaction import redacted


def verify(
    location: LocationArgument,
    *,
    at_least: Annotated[
        int | None,
        typer.Option(
            help="Id of a checkpoint that is known to exist: an older newest checkpoint is a finding.",
            min=0,
        ),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Read and verify every object that retained checkpoints need.

    Every object they reach is read once and every checksum verified; the log of each checkpoint is compared with the log before it.  With a finding, the newest sound checkpoint is named.  Exit status 1 if an object is damaged or missing, or was written by a newer statelog.

    Checksums and encryption do not show that the newest checkpoints were deleted: give --at-least the newest one that you know of.
    """
    store = open_location(location)
    out = console()
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
                line = (
                    (f"{problem.finding}", "bold red"),
                    f" {problem.kind} {problem.path}: {problem.problem}",
                )
                out.print(Text.assemble(*line), soft_wrap=True)
    newest = sound.newest
    if at_least is not None:
        findings += _is_older(at_least, as_json=as_json, location=location)
    if as_json:
        print_json(
            {
                "summary": {
                    "objects": objects,
                    "size_bytes": size_bytes,
                    "change_sets": change_sets,
                    "findings": findings,
                    "newest_sound": newest,
                }
            }
        )
    else:
        sets = plural(change_sets, "change set")
        verdict = (f"{findings:,} damaged", "bold red") if findings else ("all intact", "green")
        read = f"{plural(objects, 'object')} read ({size_text(size_bytes)}, {sets}): "
        out.print(Text.assemble(read, verdict), soft_wrap=True)
        if findings:
            none = "no retained checkpoint is sound"
            text = none if newest is None else f"the newest sound checkpoint is {newest}"
            out.print(text, markup=False)
    raise typer.Exit(EXIT_FINDING if findings else EXIT_OK)


def _is_older(at_least: int, *, as_json: bool, location: str) -> bool:
    """Report whether the newest checkpoint is older than one that is known to exist."""
    store = open_location(location)
    newest = Entries(store).newest_id()
    if newest is not None and newest >= at_least:
        return False
    problem = (
        f"the newest checkpoint is {newest}, and checkpoint {at_least} is known to exist: later "
        "checkpoints were deleted, or the location was restored from a backup"
    )
    if as_json:
        print_json({"kind": "location", "path": "", "problem": problem, "ok": False})
    else:
        console().print(Text.assemble(("missing", "bold red"), f" {problem}"), soft_wrap=True)
    return True


def gc(
    location: LocationArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--apply", help="Only list the orphans, or delete them.")
    ] = True,
    min_age: Annotated[str, typer.Option(help="Keep younger objects: 90s, 30m, 1h, 7d.")] = "1h",
    as_json: JsonLinesOption = False,
) -> None:
    """
    Find objects that no retained checkpoint needs; --apply deletes them.

    Safe during a running job as long as --min-age exceeds the time from the upload of a change set
    to the commit of its checkpoint.  Nothing is deleted while a retained checkpoint is damaged.
    In a fork that needs nothing of its parent, it deletes the tag that keeps a checkpoint there.
    Exit status 1 in that case, or if an object could not be deleted.
    """
    store, age = open_location(location), parse_duration(min_age, "--min-age")
    with (
        progress("listing" if dry_run else "listing and deleting"),
        audited(store, "gc", min_age=min_age) as line,
    ):
        report = collect_garbage(
            store,
            min_age=age,
            dry_run=dry_run,
            now=dt.datetime.fromtimestamp(time.time(), dt.UTC),
        )
        line.result(deleted=len(report.deleted), not_deleted=len(report.failed))
    if as_json:
        _print_json(report)
    else:
        _print(report, location, min_age)
    if report.failed:
        print_error(f"{plural(len(report.failed), 'object')} not deleted: {report.reason}")
    raise typer.Exit(EXIT_FINDING if report.failed else EXIT_OK)


def _print_json(report: CleanUpReport) -> None:
    for path in report.deleted:
        print_json({"path": path, "action": "would-delete" if report.dry_run else "deleted"})
    for path in report.failed:
        print_json({"path": path, "action": "failed", "reason": report.reason})
    for release in report.outside:
        for path in release.tags:
            action = "would-delete" if report.dry_run else "deleted"
            print_json({"path": path, "location": release.parent, "action": action})
        if release.problem:
            facts = {"fork_id": release.fork_id, "action": "kept", "reason": release.problem}
            print_json(facts)
    print_json(
        {
            "summary": {
                "dry_run": report.dry_run,
                "orphans": len(report.deleted) + len(report.failed),
                "deleted_bytes": report.deleted_bytes,
                "reachable": report.reachable,
                "too_young": report.too_young,
                "unknown": report.unknown,
                "released": list(report.released),
            }
        }
    )


def _print(report: CleanUpReport, location: str, min_age: str) -> None:
    out = console()
    for path in report.deleted:
        verb = ("would delete", "yellow") if report.dry_run else ("deleted", "red")
        out.print(Text.assemble(verb, " ", path), soft_wrap=True)
    for release in report.outside:
        for path in release.tags:
            verb = ("would delete", "yellow") if report.dry_run else ("deleted", "red")
            line = Text.assemble(verb, f" {path} in {release.parent}, the parent of this fork")
            out.print(line, soft_wrap=True)
        if release.problem:
            out.print(Text.assemble(("kept", "bold"), f": {release.problem}"), soft_wrap=True)
    orphans = f"{plural(len(report.deleted), 'orphan')} ({size_text(report.deleted_bytes)})"
    out.print(
        f"{redacted(location)}: {orphans} {'to delete' if report.dry_run else 'deleted'}; kept: "
        f"{report.reachable:,} reachable, {report.too_young:,} younger than {min_age}, "
        f"{report.unknown:,} not statelog's",
        soft_wrap=True,
    )
    if report.dry_run and (report.deleted or any(each.tags for each in report.outside)):
        out.print("This was a dry run; --apply deletes them.")
