"""`statelog copy`: move a location to another store, verified and resumable."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from statelog.checkpoint.at_time import given_checkpoint_id
from statelog.cli.options import CHECKPOINT_FORMS
from statelog.cli.output import console, open_location, plural, print_json, progress, size_text
from statelog.operations.copy_location import CopyProgress, copy_location
from statelog.store import open_location as open_new
from statelog.store.encryption import OPTION


def copy(
    location: Annotated[str, typer.Argument(help="State location: a path or URL.")],
    new: Annotated[str, typer.Argument(help="The copy: an empty path or URL.")],
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help=f"The newest checkpoint of the copy: {CHECKPOINT_FORMS}. The newest one by default."
        ),
    ] = None,
    new_encryption: Annotated[
        str | None,
        typer.Option(
            help="Where the keys of the copy come from: env:NAME, file:PATH, or none for no "
            "encryption; those of LOCATION by default."
        ),
    ] = None,
    parallelism: Annotated[int, typer.Option(help="Objects copied at once.", min=1)] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """
    Copy the retained checkpoints of a location to another folder or store.

    Every object is verified before and after it is put.  A call that was interrupted is repeated:
    objects that are in the copy are verified and not put again.  A query may go on in LOCATION; to move it,
    stop it before the last call, and start it with NEW as stateLocation and its own checkpointLocation.

    A copy with other encryption keys is how a location is encrypted, or gets a new key.  The keys of LOCATION
    are those of the environment variable STATELOG_ENCRYPTION.
    """
    source = open_location(location)
    with progress("reading") as update:

        def show(now: CopyProgress) -> None:
            update(
                f"{now.objects_done:,} of {plural(now.objects, 'object')}, "
                f"{size_text(now.bytes_done)} of {size_text(now.size_bytes)}"
            )

        report = copy_location(
            source,
            open_new(new, options={OPTION: new_encryption} if new_encryption else None),
            checkpoint_id=given_checkpoint_id(source, checkpoint),
            parallelism=parallelism,
            on_progress=show,
        )
    if as_json:
        print_json({"location": source.url, **dataclasses.asdict(report)})
        return
    console().print(
        f"{source.url} copied: {plural(len(report.checkpoints), 'checkpoint')} "
        f"({', '.join(map(str, report.checkpoints))}), {plural(report.objects, 'object')} verified "
        f"({size_text(report.size_bytes)}), {report.copied:,} of them put by this call "
        f"({size_text(report.copied_bytes)})",
        soft_wrap=True,
        markup=False,
    )
    for parent in report.parents:
        console().print(f"read from {parent}, a parent of this fork, too", soft_wrap=True)
