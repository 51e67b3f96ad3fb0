"""`statelog cat`: the changes in one changelog file, ours or Flink's."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from statelog.cli.output import open_file, print_json
from statelog.errors import UsageError
from statelog.format.change_set import decode_change_set
from statelog.format.segment import Segment, parse_segment

_OFFSETS_SHOWN = 20


def cat(
    file: Annotated[
        str, typer.Argument(help="A changelog file or a checkpoint's _metadata: path or URL.")
    ],
    offset: Annotated[
        list[int] | None,
        typer.Option(
            help="Only the change set at this payload offset; may be given several times.", min=0
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """
    Print the changes in a changelog file, one line each.

    Columns: the offset of the change set, the key group (-1 for metadata), the size of the value
    in bytes, and its SHA-256.  Every checksum the file has is verified first.
    """
    store, name = open_file(file)
    segment = parse_segment(store.get(name), where=file)
    sizes = dict(segment.set_ranges())
    offsets = _checked(segment, offset) if offset else list(sizes)
    if not as_json:
        sys.stdout.write(f"{'change_set':>12} {'key_group':>9} {'size':>10}  sha256\n")
    for start in offsets:
        decoded = decode_change_set(segment.payload, start, size_bytes=sizes.get(start), where=file)
        for change in decoded.batch:
            digest = hashlib.sha256(change.value).hexdigest()
            if as_json:
                print_json(
                    {
                        "change_set": start,
                        "key_group": change.key_group,
                        "size": len(change.value),
                        "sha256": digest,
                    }
                )
            else:
                sys.stdout.write(
                    f"{start:>12} {change.key_group:>9} {len(change.value):>10}  {digest}\n"
                )


def _checked(segment: Segment, offsets: Sequence[int]) -> Sequence[int]:
    """Return the offsets asked for if change sets begin there."""
    known = segment.set_offsets()
    for one in offsets:
        if one not in known:
            shown = ", ".join(map(str, known[:_OFFSETS_SHOWN])) or "none"
            more = f" and {len(known) - _OFFSETS_SHOWN} more" if len(known) > _OFFSETS_SHOWN else ""
            raise UsageError(
                f"no change set begins at payload offset {one} of {segment.where}; they begin at "
                f"{shown}{more}"
            )
    return offsets
