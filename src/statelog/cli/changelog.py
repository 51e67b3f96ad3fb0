"""`statelog changelog`: print the changes in a changelog file of statelog or Flink."""

from __future__ import annotations

import enum
import hashlib
import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from statelog.checkpoint.ownership import time_text
from statelog.cli import options
from statelog.cli.output import note, open_file, print_json
from statelog.errors import UsageError
from statelog.format.change_set import decode_change_set
from statelog.format.checkpoint_record import CHECKPOINT_TAG, ClaimRecord, decode_entry
from statelog.format.segment import Segment, parse_whole_file
from statelog.model import METADATA_KEY_GROUP, StateChange
from statelog.plain_text import one_line
from statelog.store import read_verified

_OFFSETS_SHOWN = 20
_VALUE_BYTES = 64


class ValueForm(enum.Enum):
    """How to print the value of a change."""

    TEXT = "text"
    HEX = "hex"


def changelog(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Path or URL of a changelog file or of a checkpoint's _metadata file.",
        ),
    ],
    offset: Annotated[
        list[int] | None,
        typer.Option(
            help="Print only the change set at this payload offset. Can be repeated.",
            min=0,
        ),
    ] = None,
    values: Annotated[
        ValueForm | None,
        typer.Option(
            help="Also print the values, either as UTF-8 text, with other bytes and control characters escaped, or as hexadecimal digits."
        ),
    ] = None,
    value_bytes: Annotated[
        int, typer.Option(help="Print at most this many bytes of each value; 0 prints all.", min=0)
    ] = _VALUE_BYTES,
    as_json: options.Json = False,
) -> None:
    """
    Print the changes in a changelog file or checkpoint, one per line, with sizes and digests.

    Columns: the offset of the change set, the key group, the size of the value in bytes, and its
    SHA-256; with --values, also the encoded value.  Key group -1 contains metadata, which every
    reader receives.  The command first verifies every checksum in the file.  If the file is a
    claim, the command prints the claim's owner. To see how state changed, use `statelog diff`.

    Examples:
        statelog changelog s3://bucket/jobs/totals/chk-41/_metadata
        statelog changelog s3://bucket/jobs/totals/chk-41/_metadata --values text --value-bytes 0
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
        note(f"key group {METADATA_KEY_GROUP}: metadata, which every reader receives")


def _claim_in(segment: Segment) -> ClaimRecord | None:
    """Return the claim in a file, or None if it is a checkpoint or a changelog file."""
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
    before = "no earlier checkpoint"
    if claim.newest is not None:
        before = f"continues checkpoint {claim.newest}"
    owner = f"claim {claim.number} of {claim.owner_id!r}{time_text(claim, ', at ')}"
    line = f"{owner}: {before}, the next id is {claim.next_number}"
    sys.stdout.write(_for_terminal(one_line(line)) + "\n")


def _row(
    start: int, change: StateChange, values: ValueForm | None, value_bytes: int
) -> dict[str, int | str]:
    """Convert a change to a JSON object."""
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
    """Format a change as a line of text."""
    line = f"{row['change_set']:>12} {row['key_group']:>9} {row['size']:>10}  {row['sha256']}"
    if "value" not in row:
        return line
    cut = f"... ({row['cut_bytes']} more bytes)" if row["cut_bytes"] else ""
    return f"{line}  {row['value']}{cut}"


def _for_terminal(line: str) -> str:
    """Escape the characters in a line that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def _text(value: bytes) -> str:
    """Decode UTF-8 to a single line of text, with backslash escapes."""
    return one_line(value.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))


def _checked(segment: Segment, offsets: Sequence[int]) -> Sequence[int]:
    """Check that a change set begins at each of the offsets, and return them."""
    set_offsets = segment.set_offsets()
    for offset in offsets:
        if offset not in set_offsets:
            first_offsets = ", ".join(map(str, set_offsets[:_OFFSETS_SHOWN])) or "none"
            count = len(set_offsets) - _OFFSETS_SHOWN
            more = f" and {count} more" if count > 0 else ""
            raise UsageError(
                f"no change set begins at payload offset {offset} of {segment.where}; change sets begin at "
                f"{first_offsets}{more}"
            )
    return offsets
