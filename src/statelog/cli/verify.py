"""`statelog verify`: read and verify every object that retained checkpoints reach."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated

import typer
from rich.text import Text

from statelog.checkpoint.verify import VerifiedObject, verify_location
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    console,
    open_location,
    plural,
    print_json,
    size_text,
)
from statelog.store import LocationPaths


def verify(
    location: Annotated[str, typer.Argument(help="State location: a path or URL.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """
    Read and verify every object that retained checkpoints need.

    Every object they reach is read once and every checksum verified.  Exit status 1 if an object is damaged or missing.
    """
    store = open_location(location)
    shown = console()
    found: list[VerifiedObject] = []
    with shown.status("reading") as status:
        if as_json or not sys.stdout.isatty():
            status.stop()
        for one in verify_location(store, LocationPaths()):
            found.append(one)
            status.update(f"{plural(len(found), 'object')} read, at {one.path}")
            if as_json:
                print_json({**dataclasses.asdict(one), "ok": not one.problem})
            elif one.problem:
                shown.print(
                    Text.assemble(
                        ("damaged", "bold red"), f" {one.kind} {one.path}: {one.problem}"
                    ),
                    soft_wrap=True,
                )
    damaged = sum(bool(one.problem) for one in found)
    if not as_json:
        size = size_text(sum(one.size_bytes for one in found))
        sets = plural(sum(one.change_sets for one in found), "change set")
        verdict = (f"{damaged:,} damaged", "bold red") if damaged else ("all intact", "green")
        shown.print(
            Text.assemble(f"{plural(len(found), 'object')} read ({size}, {sets}): ", verdict),
            soft_wrap=True,
        )
    raise typer.Exit(EXIT_FINDING if damaged else EXIT_OK)
