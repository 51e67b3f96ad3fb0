"""`statelog gc`: the objects that no retained checkpoint needs."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

from statelog.checkpoint.audit import audited
from statelog.checkpoint.clean_up import CleanUpReport, collect_garbage
from statelog.cli import options
from statelog.cli.output import (
    Change,
    open_location,
    parse_duration,
    plural,
    print_changes,
    print_error,
    progress,
    say,
    say_dry_run,
    size_text,
)
from statelog.redaction import redacted


def gc(
    location: options.Location,
    apply: options.Apply = False,
    min_age: options.MinAge = "1h",
    as_json: options.Json = False,
) -> bool:
    """
    Delete the objects that no retained checkpoint needs.

    A query may run meanwhile if --min-age exceeds the time from the upload of a change set to the
    commit of its checkpoint.  Nothing is deleted while a retained checkpoint is damaged.  In a fork
    that no longer needs its parent, the command deletes the tag that retains a checkpoint of the
    parent.  Exit status 1 if a retained checkpoint is damaged or an object could not be deleted.

    Examples:
        statelog gc s3://bucket/jobs/totals
        statelog gc s3://bucket/jobs/totals --min-age 1d --apply
    """
    store = open_location(location)
    age = parse_duration(min_age, "--min-age")
    with (
        progress("listing and deleting" if apply else "listing"),
        audited(store, "gc", min_age=min_age) as line,
    ):
        now = dt.datetime.fromtimestamp(time.time(), dt.UTC)
        report = collect_garbage(store, min_age=age, apply=apply, now=now)
        line.result(deleted=len(report.deleted), not_deleted=len(report.failed))
    summary = {
        "orphans": len(report.deleted) + len(report.failed),
        "deleted_bytes": report.deleted_bytes,
        "reachable": report.reachable,
        "too_young": report.too_young,
        "unknown": report.unknown,
        "released": list(report.released),
    }
    print_changes(_changes(report), summary, apply=apply, as_json=as_json)
    if not as_json:
        orphans = f"{plural(len(report.deleted), 'orphan')} ({size_text(report.deleted_bytes)})"
        say(
            f"{redacted(location)}: {orphans} {'deleted' if apply else 'to delete'}; kept: "
            f"{report.reachable:,} reachable, {report.too_young:,} younger than {min_age}, "
            f"{report.unknown:,} not made by statelog"
        )
        if not apply and (report.deleted or any(release.tags for release in report.outside)):
            say_dry_run()
    if report.failed:
        print_error(f"{plural(len(report.failed), 'object')} not deleted: {report.reason}")
    return bool(report.failed)


def _changes(report: CleanUpReport) -> Iterator[Change]:
    for path in report.deleted:
        yield Change("delete", path, {"path": path})
    for path in report.failed:
        yield Change("failed", path, {"path": path, "reason": report.reason})
    for release in report.outside:
        for path in release.tags:
            text = f"{path} in {release.parent}, the parent of this fork"
            yield Change("delete", text, {"path": path, "location": release.parent})
        if release.problem:
            facts = {"fork_id": release.parent_id, "reason": release.problem}
            yield Change("kept", f"the tag in a parent: {release.problem}", facts)
