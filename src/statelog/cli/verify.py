"""`statelog verify`: read and verify every object that retained checkpoints reach."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.text import Text

from statelog.checkpoint.history import Entries
from statelog.checkpoint.verify import SoundCheckpoints, verify_location
from statelog.cli.output import (
    EXIT_FINDING,
    EXIT_OK,
    console,
    open_location,
    plural,
    print_json,
    progress,
    size_text,
)


def verify(
    location: Annotated[str, typer.Argument(help="State location: a path or URL.")],
    *,
    at_least: Annotated[
        int | None,
        typer.Option(
            help="Id of a checkpoint that is known to exist: an older newest checkpoint is a finding.",
            min=0,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
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
