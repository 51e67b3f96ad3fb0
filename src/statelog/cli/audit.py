"""`statelog audit`: who changed a location, when, how, and from which host."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from statelog.checkpoint.audit import UNFINISHED, AuditLine, AuditLog, problems_of, read_audit_log
from statelog.checkpoint.history import open_state
from statelog.cli import options
from statelog.cli.output import (
    open_location,
    plural,
    print_error,
    print_json,
    print_table,
    progress,
    say,
    utc,
)
from statelog.model import JsonObject
from statelog.redaction import redacted

_STYLES = {"done": "green", "failed": "bold red", UNFINISHED: "yellow"}
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

    Each command and Python call that changes a location writes a line: gc, rewind, tag, fork, copy,
    edit, forget and others. Micro-batches, dry runs and calls without an effect do not. An
    operation is "unfinished" if it is running or was interrupted; repeat an interrupted operation.

    Each process describes itself, so the lines prove nothing against a person who can write to the
    location.  Exit status 1 if a line is damaged.

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
            print_json(_json(line))
        summary = {"lines": len(audit_log.lines), "earlier": audit_log.earlier}
        print_json({"summary": {**summary, "problems": problems_of(audit_log)}})
    else:
        _print(audit_log, location)
    problems = problems_of(audit_log)
    for problem in problems if not as_json else ():
        print_error(problem)
    return bool(problems)


def _json(line: AuditLine) -> dict[str, object]:
    begin = {} if line.begin is None else msgspec.to_builtins(line.begin)
    end = {} if line.end is None else msgspec.to_builtins(line.end)
    parts = {name: value for name, value in {**begin, **end}.items() if name != "version"}
    return {"line": line.name, **parts, "outcome": line.outcome, "problem": line.problem}


def _print(audit_log: AuditLog, location: str) -> None:
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
    outcome = Text(line.outcome, style=_STYLES.get(line.outcome, "bold red"))
    return [*who, outcome, " -> ".join(filter(None, (arguments, result)))]


def _facts(facts: JsonObject) -> str:
    """Return facts as text: `min_age=1h deleted=3`."""
    return " ".join(f"{name}={_value(value)}" for name, value in facts.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
