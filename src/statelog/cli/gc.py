"""`statelog gc`: the objects that no retained checkpoint needs."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

from statelog.checkpoint.audit import audited
from statelog.checkpoint.clean_up import CleanUpReport, collect_garbage
from statelog.cli.options import ApplyOption, JsonOption, LocationArgument, MinAgeOption
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    action,
    action_json,
    open_location,
    parse_duration,
    plural,
    print_error,
    print_json,
    progress,
    say,
    say_dry_run,
    size_text,
)
from statelog.redaction import redacted


def gc(
    location: LocationArgument,
    apply: ApplyOption = False,
    min_age: MinAgeOption = "1h",
    as_json: JsonOption = False,
) -> int:
    """
    Delete the objects that no retained checkpoint needs.

    A query may run meanwhile if --min-age exceeds the time from the upload of a change set to the commit
    of its checkpoint.  Nothing is deleted while a retained checkpoint is damaged.  In a fork that no
    longer needs its parent, the command deletes the tag that keeps a checkpoint of the parent.  Exit status 1 if
    a retained checkpoint is damaged or an object could not be deleted.

    Examples:
        statelog gc s3://bucket/jobs/totals
        statelog gc s3://bucket/jobs/totals --min-age 1d --apply
    """
    store, age = open_location(location), parse_duration(min_age, "--min-age")
    with (
        progress("listing and deleting" if apply else "listing"),
        audited(store, "gc", min_age=min_age) as line,
    ):
        now = dt.datetime.fromtimestamp(time.time(), dt.UTC)
        report = collect_garbage(store, min_age=age, apply=apply, now=now)
        line.result(deleted=len(report.deleted), not_deleted=len(report.failed))
    if as_json:
        for document in _json(report):
            print_json(document)
    else:
        _print(report, location, min_age)
    if report.failed:
        print_error(f"{plural(len(report.failed), 'object')} not deleted: {report.reason}")
    return EXIT_FINDING if report.failed else EXIT_OK


def _json(report: CleanUpReport) -> Iterator[dict[str, object]]:
    done = action_json("delete", not report.dry_run)
    for path in report.deleted:
        yield {"path": path, "action": done}
    for path in report.failed:
        yield {"path": path, "action": "failed", "reason": report.reason}
    for release in report.outside:
        for path in release.tags:
            yield {"path": path, "location": release.parent, "action": done}
        if release.problem:
            yield {"fork_id": release.fork_id, "action": "kept", "reason": release.problem}
    summary = {
        "dry_run": report.dry_run,
        "orphans": len(report.deleted) + len(report.failed),
        "deleted_bytes": report.deleted_bytes,
        "reachable": report.reachable,
        "too_young": report.too_young,
        "unknown": report.unknown,
        "released": list(report.released),
    }
    yield {"summary": summary}


def _print(report: CleanUpReport, location: str, min_age: str) -> None:
    done = action("delete", not report.dry_run)
    for path in report.deleted:
        say(done, f" {path}")
    for release in report.outside:
        for path in release.tags:
            say(done, f" {path} in {release.parent}, the parent of this fork")
        if release.problem:
            say(("kept", "bold"), f": {release.problem}")
    orphans = f"{plural(len(report.deleted), 'orphan')} ({size_text(report.deleted_bytes)})"
    say(
        f"{redacted(location)}: {orphans} {'to delete' if report.dry_run else 'deleted'}; kept: "
        f"{report.reachable:,} reachable, {report.too_young:,} younger than {min_age}, "
        f"{report.unknown:,} not made by statelog"
    )
    if report.dry_run and (report.deleted or any(each.tags for each in report.outside)):
        say_dry_run()
