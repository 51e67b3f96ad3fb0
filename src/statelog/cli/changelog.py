"""
`statelog changelog`: the changes in one changelog file, ours or Flink's.

`statelog audit`: who changed a location, when, how, and from which host.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.text import Text

from statelog.checkpoint.audit import UNFINISHED, AuditLine, AuditLog, problems_of, read_audit_log
from statelog.checkpoint.history import open_state
from statelog.checkpoint.ownership import time_text
from statelog.cli.options import JsonLinesOption, LocationArgument
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    PlainTable,
    console,
    open_file,
    open_location,
    plural,
    print_error,
    print_json,
    progress,
    utc,
)
from statelog.errors import UsageError
from statelog.format.change_set_decoder import decode_change_set
from statelog.format.checkpoint_metadata import CHECKPOINT_TAG
from statelog.format.claim_record import ClaimRecord, decode_entry
from statelog.format.segment import Segment, parse_whole_file
from statelog.model import METADATA_KEY_GROUP, JsonObject, StateChange
from statelog.plain_text import one_line
from statelog.redaction import redacted
from statelog.store import read_verified

_OFFSETS_SHOWN = 20
_VALUE_BYTES = 64

_STYLES = {"done": "green", "failed": "bold red", UNFINISHED: "yellow"}


class ValueForm(enum.Enum):
    """How to show a value."""

    TEXT = "text"
    HEX = "hex"


def changelog(
    file: Annotated[
        str, typer.Argument(help="A changelog file or a checkpoint's _metadata: path or URL.")
    ],
    offset: Annotated[
        list[int] | None,
        typer.Option(
            help="Only the change set at this payload offset; may be given several times.", min=0
        ),
    ] = None,
    values: Annotated[
        ValueForm | None,
        typer.Option(
            help="Show the values too: as text (UTF-8; other bytes and control characters as "
            "escapes) or as hex digits."
        ),
    ] = None,
    value_bytes: Annotated[
        int, typer.Option(help="Bytes of each value to show at most; 0 shows all.", min=0)
    ] = _VALUE_BYTES,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Print sizes and digests of the changes in a changelog file, one line each; of a claim, whose it is.

    Columns: the offset of the change set, the key group, the size of the value in bytes, and its
    SHA-256; --values adds the value as it is encoded.  `statelog diff` shows what changed in the state.  Key group -1 is metadata, which every reader receives
    whatever its key groups.  Every checksum of the file is verified first.
    """
    store, name = open_file(file)
    segment = read_verified(store, name, lambda data: parse_whole_file(data, where=file))
    sizes = dict(segment.set_ranges())
    offsets = _checked(segment, offset) if offset else list(sizes)
    metadata = False
    claim = _claim_in(segment)
    if claim is not None and not offsets:
        _show_claim(claim, as_json)
        return
    if not as_json:
        last = "sha256" if values is None else f"{'sha256':64}  value"
        sys.stdout.write(f"{'change_set':>12} {'key_group':>9} {'size':>10}  {last}\n")
    for start in offsets:
        decoded = decode_change_set(segment.payload, start, size_bytes=sizes.get(start), where=file)
        for change in decoded.batch:
            metadata = metadata or change.key_group == METADATA_KEY_GROUP
            row = _row(start, change, values, value_bytes)
            if as_json:
                print_json(row)
            else:
                sys.stdout.write(_for_terminal(_line(row)) + "\n")
    if metadata and not as_json:
        sys.stderr.write(
            f"key group {METADATA_KEY_GROUP}: metadata, which every reader receives whatever its "
            "key groups\n"
        )


def _claim_in(segment: Segment) -> ClaimRecord | None:
    """Return the claim in a file; None if it is a checkpoint or a changelog file."""
    record = None if segment.trailer is None else segment.trailer.sections.get(CHECKPOINT_TAG)
    if record is None:
        return None
    entry = decode_entry(record, where=segment.where)
    return entry if isinstance(entry, ClaimRecord) else None


def _show_claim(claim: ClaimRecord, as_json: bool) -> None:
    if as_json:
        facts = msgspec.structs.asdict(claim)
        print_json({"claim": facts.pop("number"), **facts})
        return
    before = "no checkpoint before it"
    if claim.newest is not None:
        before = f"it continues checkpoint {claim.newest}"
    owner = f"claim {claim.number} of {claim.owner_id!r}{time_text(claim, ', at ')}"
    line = f"{owner}: {before}, {claim.next_number} is the next number"
    sys.stdout.write(_for_terminal(one_line(line)) + "\n")


def _row(
    start: int, change: StateChange, values: ValueForm | None, value_bytes: int
) -> dict[str, int | str]:
    """Return one change as a JSON object."""
    size = len(change.value)
    row: dict[str, int | str] = {
        "change_set": start,
        "key_group": change.key_group,
        "size": size,
        "sha256": hashlib.sha256(change.value).hexdigest(),
    }
    if values is not None:
        value = change.value[: value_bytes or size]
        row["value"] = value.hex() if values is ValueForm.HEX else _text(value)
        row["cut_bytes"] = size - len(value)
    return row


def _line(row: dict[str, int | str]) -> str:
    """Return one change as a line of text."""
    line = f"{row['change_set']:>12} {row['key_group']:>9} {row['size']:>10}  {row['sha256']}"
    if "value" not in row:
        return line
    cut = f"... ({row['cut_bytes']} more bytes)" if row["cut_bytes"] else ""
    return f"{line}  {row['value']}{cut}"


def _for_terminal(line: str) -> str:
    """Return *line* with escapes for characters that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def _text(value: bytes) -> str:
    """Return UTF-8 as text on one line, with escapes that begin with a backslash."""
    return "".join(map(_character, value.decode("utf-8", "surrogateescape")))


def _character(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if character.isprintable() and character != "\\":
        return character
    return character.encode("unicode_escape").decode("ascii")


def _checked(segment: Segment, offsets: Sequence[int]) -> Sequence[int]:
    """Return the given offsets if change sets begin there."""
    set_offsets = segment.set_offsets()
    for offset in offsets:
        if offset not in set_offsets:
            first_offsets = ", ".join(map(str, set_offsets[:_OFFSETS_SHOWN])) or "none"
            more = (
                f" and {len(set_offsets) - _OFFSETS_SHOWN} more"
                if len(set_offsets) > _OFFSETS_SHOWN
                else ""
            )
            raise UsageError(
                f"no change set begins at payload offset {offset} of {segment.where}; they begin at "
                f"{first_offsets}{more}"
            )
    return offsets


def audit(
    location: LocationArgument,
    limit: Annotated[
        int, typer.Option(help="Read only this many of the newest lines; 0 reads all.", min=0)
    ] = 100,
    as_json: JsonLinesOption = False,
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
