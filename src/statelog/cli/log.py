"""`statelog log`: who changed a location, when, how, and from which host."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich import box
from rich.text import Text

from statelog.checkpoint.audit import UNFINISHED, AuditLine, AuditLog, problems_of, read_audit_log
from statelog.checkpoint.open_state import open_state
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    PlainTable,
    console,
    open_location,
    plural,
    print_error,
    print_json,
    progress,
    utc,
)
from statelog.model import JsonObject
from statelog.redaction import redacted

_STYLES = {"done": "green", "failed": "bold red", UNFINISHED: "yellow"}


def log(
    location: Annotated[str, typer.Argument(help="State location: a path or URL.")],
    limit: Annotated[
        int, typer.Option(help="Read only this many of the newest lines; 0 reads all.", min=0)
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """
    List the operations that changed a state location, the newest last.

    Each command and Python call that changes a location writes a line: gc, repair, rewind, tag, untag, fork,
    copy, edit, forget and others.  Micro-batches, dry runs and calls that find nothing to do write none.
    "unfinished" means that the operation still runs, or was cut off: repeat it.

    The lines are what the processes said about themselves.  They prove nothing against a person who can write
    to the location.  Exit status 1 if a line is damaged.
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
    raise typer.Exit(EXIT_FINDING if problems else EXIT_OK)


def _json(line: AuditLine) -> dict[str, object]:
    begin = {} if line.begin is None else msgspec.to_builtins(line.begin)
    end = {} if line.end is None else msgspec.to_builtins(line.end)
    parts = {name: value for name, value in {**begin, **end}.items() if name != "version"}
    return {"line": line.name, **parts, "outcome": line.outcome, "problem": line.problem}


def _print(audit_log: AuditLog, location: str) -> None:
    out = console()
    if not audit_log.lines:
        out.print(f"{redacted(location)} has no audit lines.", soft_wrap=True)
        return
    if audit_log.earlier:
        out.print(f"{plural(audit_log.earlier, 'earlier line')}; --limit 0 lists them.")
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for head in ("began (UTC)", "user", "host", "process", "operation", "outcome"):
        table.add_column(head, no_wrap=True)
    table.add_column("")
    for line in audit_log.lines:
        begin, end = line.begin, line.end
        style = _STYLES.get(line.outcome, "bold red")
        said = "" if begin is None else _facts(begin.arguments)
        result = "" if end is None else ": ".join(filter(None, (end.error, _facts(end.result))))
        table.add_row(
            "" if begin is None else utc(begin.began_at_ms),
            "" if begin is None else begin.user,
            "" if begin is None else begin.host,
            "" if begin is None else str(begin.process),
            "" if begin is None else begin.operation,
            Text(line.outcome, style=style),
            " -> ".join(filter(None, (said, result))),
        )
    out.print(table)


def _facts(facts: JsonObject) -> str:
    """Return facts as text: `min_age=1h deleted=3`."""
    return " ".join(f"{name}={_value(value)}" for name, value in facts.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
