"""
`statelog checkpoints`: list a location's checkpoints, and which of them can be restored.

The verb gc deletes the objects that no retained checkpoint needs; audit shows who changed a
location, when, how, and from which host.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from statelog.checkpoint.audit import (
    UNFINISHED,
    AuditLine,
    AuditLog,
    audited,
    problems_of,
    read_audit_log,
)
from statelog.checkpoint.clean_up import CleanUpReport, collect_garbage
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import (
    FIGURES_PROPERTY,
    CheckpointState,
    CheckpointSummary,
    list_checkpoints,
)
from statelog.cli import options
from statelog.cli.output import (
    Change,
    console,
    open_location,
    parse_duration,
    plural,
    print_changes,
    print_error,
    print_json,
    print_table,
    progress,
    say,
    say_dry_run,
    size_text,
    utc,
)
from statelog.model import JsonObject
from statelog.redaction import redacted

_PROPERTIES = "properties"
_HIDDEN_BELOW = {
    "parent": 96,
    "epoch": 96,
    "changes": 96,
    "snapshots": 96,
    "created (UTC)": 76,
    _PROPERTIES: 56,
}
_LEFT = ("state", "created (UTC)", _PROPERTIES)
_FIELDS = tuple(field.name for field in dataclasses.fields(CheckpointSummary))
_BATCH_NUMBERS = ("batch_id", "rows", "keys", "output_rows", "delta_bytes", "tasks")
_STYLES = {
    CheckpointState.RETAINED: "green",
    CheckpointState.SUBSUMED: "dim",
    CheckpointState.DAMAGED: "bold red",
    CheckpointState.INCOMPATIBLE: "yellow",
}


def checkpoints(location: options.Location, as_json: options.Json = False) -> bool:
    """
    List the checkpoints of a state location.

    A "retained" checkpoint can be restored.  A "subsumed" checkpoint can no longer be restored; its
    file is kept until the next garbage collection, or longer if a retained checkpoint needs changes
    stored in it.  Exit status 1 if a checkpoint is damaged.

    Examples:
        statelog checkpoints s3://bucket/jobs/totals
        statelog checkpoints s3://bucket/jobs/totals --json
    """
    store = open_location(location)
    with progress("reading"):
        summaries = list_checkpoints(store)
    if as_json:
        for summary in summaries:
            print_json(_json(summary))
    elif summaries:
        _print(summaries, location)
    else:
        say(f"{redacted(location)} is claimed, but contains no checkpoint yet.")
    return any(summary.state is CheckpointState.DAMAGED for summary in summaries)


def _json(summary: CheckpointSummary) -> dict[str, object]:
    return {**{name: getattr(summary, name) for name in _FIELDS}, "state": summary.state.value}


def _print(summaries: list[CheckpointSummary], location: str) -> None:
    # A narrow terminal shows the most important columns; --json shows all.
    width = console().width
    rows = [
        {head: cell for head, cell in _row(summary).items() if width >= _HIDDEN_BELOW.get(head, 0)}
        for summary in summaries
    ]
    heads = list(rows[0])
    print_table(
        heads,
        [list(row.values()) for row in rows],
        numbers=[head for head in heads if head not in _LEFT],
        whole=heads,
        cut=_PROPERTIES,
    )
    for summary in summaries:
        if summary.problem:
            say((summary.problem, _STYLES[summary.state]))
    retained = sum(summary.state is CheckpointState.RETAINED for summary in summaries)
    say(f"{plural(len(summaries), 'checkpoint')} in {redacted(location)}, {retained} retained")


def _row(summary: CheckpointSummary) -> dict[str, str | Text]:
    readable = summary.created_at_ms is not None
    return {
        "id": str(summary.checkpoint_id),
        "parent": _number(summary.parent_id),
        "epoch": _number(summary.epoch),
        "state": Text(summary.state.value, style=_STYLES[summary.state]),
        "created (UTC)": utc(summary.created_at_ms),
        "size": size_text(summary.size_bytes),
        "log": str(summary.log_length) if readable else "",
        "changes": size_text(summary.log_size_bytes) if readable else "",
        "snapshots": str(summary.snapshot_count) if readable else "",
        _PROPERTIES: Text(_properties(summary) if readable else ""),
    }


def _properties(summary: CheckpointSummary) -> str:
    """Return the figures of a micro-batch, or all plain properties if there are none."""
    stored = summary.properties
    figures = summary.properties.get(FIGURES_PROPERTY)
    stored = {**stored, **figures} if isinstance(figures, Mapping) else stored
    plain = {k: v for k, v in stored.items() if isinstance(v, bool | int | float | str)}
    batch = {name: plain[name] for name in _BATCH_NUMBERS if name in plain}
    return " ".join(f"{name}={value}" for name, value in (batch or plain).items())


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def gc(
    location: options.Location,
    apply: options.Apply = False,
    min_age: options.MinAge = "1h",
    as_json: options.Json = False,
) -> bool:
    """
    Delete the objects that no retained checkpoint needs.

    A query can keep running if --min-age exceeds the time from the upload of a change set to the
    commit of its checkpoint.  The command deletes nothing while a retained checkpoint is damaged.
    When run on a fork that no longer needs its parent, the command deletes the tag that retains the
    parent's checkpoint.  Exit status 1 if a retained checkpoint is damaged or an object could not
    be deleted.

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


_OUTCOMES = {"done": "green", "failed": "bold red", UNFINISHED: "yellow"}
_HEADS = ("began (UTC)", "user", "host", "process", "operation", "outcome")


def audit(
    location: options.Location,
    limit: Annotated[
        int, typer.Option(help="Read at most this many of the newest lines; 0 reads all.", min=0)
    ] = 100,
    as_json: options.Json = False,
) -> bool:
    """
    List the operations that changed a state location, newest last.

    Every command or Python call that changes a location writes a line: gc, rewind, tag, fork, copy,
    edit, forget and others. Micro-batches, dry runs and calls that change nothing are not listed.
    An operation is "unfinished" if it is still running or was interrupted. If it was interrupted,
    repeat it.

    Each process reports on itself, so anyone who can write to the location can forge lines.  Exit
    status 1 if a line is damaged.

    Examples:
        statelog audit s3://bucket/jobs/totals
        statelog audit s3://bucket/jobs/totals --limit 0 --json
    """
    store = open_state(location)
    with progress("reading"):
        audit_log = read_audit_log(store, limit or None)
    if not audit_log.lines and not audit_log.unknown:
        open_location(location)
    if as_json:
        for line in audit_log.lines:
            print_json(_line_as_json(line))
        summary = {"lines": len(audit_log.lines), "earlier": audit_log.earlier}
        print_json({"summary": {**summary, "problems": problems_of(audit_log)}})
    else:
        _print_log(audit_log, location)
    problems = problems_of(audit_log)
    for problem in problems if not as_json else ():
        print_error(problem)
    return bool(problems)


def _line_as_json(line: AuditLine) -> dict[str, object]:
    begin = {} if line.begin is None else msgspec.to_builtins(line.begin)
    end = {} if line.end is None else msgspec.to_builtins(line.end)
    parts = {name: value for name, value in {**begin, **end}.items() if name != "version"}
    return {"line": line.name, **parts, "outcome": line.outcome, "problem": line.problem}


def _print_log(audit_log: AuditLog, location: str) -> None:
    if not audit_log.lines:
        say(f"The audit log of {redacted(location)} is empty.")
        return
    if audit_log.earlier:
        say(f"{plural(audit_log.earlier, 'earlier line')}; --limit 0 lists them.")
    print_table((*_HEADS, ""), map(_cells, audit_log.lines), whole=_HEADS)


def _cells(line: AuditLine) -> list[str | Text]:
    begin = line.begin
    end = line.end
    arguments = "" if begin is None else _facts(begin.arguments)
    result = "" if end is None else ": ".join(filter(None, (end.error, _facts(end.result))))
    who = ["", "", "", "", ""]
    if begin is not None:
        process = str(begin.process)
        who = [utc(begin.began_at_ms), begin.user, begin.host, process, begin.operation]
    outcome = Text(line.outcome, style=_OUTCOMES.get(line.outcome, "bold red"))
    return [*who, outcome, " -> ".join(filter(None, (arguments, result)))]


def _facts(facts: JsonObject) -> str:
    """Format facts as text: `min_age=1h deleted=3`."""
    return " ".join(f"{name}={_value(value)}" for name, value in facts.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
