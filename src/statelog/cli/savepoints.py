"""`statelog tag`, `untag`, `fork` and `copy`: keep a checkpoint, go on from it, or move a location."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich import box
from rich.text import Text

from statelog.checkpoint.at_time import given_checkpoint_id
from statelog.checkpoint.tags import Tag, TagKind, list_tags, read_tag
from statelog.cli.options import (
    CHECKPOINT_FORMS,
    CheckpointOption,
    JsonLinesOption,
    JsonOption,
    LocationArgument,
)
from statelog.cli.output import (
    EXIT_OK,
    PlainTable,
    console,
    open_location,
    plural,
    print_json,
    progress,
    size_text,
    utc,
)
from statelog.errors import CheckpointError, StatelogError, UsageError
from statelog.extensions.operations.copy_location import CopyProgress, copy_location
from statelog.extensions.operations.fork import fork as make_fork
from statelog.extensions.operations.savepoints import tag as make_tag
from statelog.extensions.operations.savepoints import untag as remove_tag
from statelog.redaction import redacted
from statelog.store import ObjectStore
from statelog.store import open_location as open_new
from statelog.store.encryption import OPTION

QueryOption = Annotated[
    str | None,
    typer.Option(
        help="The query's checkpointLocation, if the checkpoint does not record it or it was moved."
    ),
]


def tag(
    location: LocationArgument,
    name: Annotated[
        str | None, typer.Argument(help="Name of the tag. Without it: list the tags.")
    ] = None,
    checkpoint: CheckpointOption = None,
    checkpoint_location: QueryOption = None,
    comment: Annotated[str, typer.Option(help="Stored with the tag, for people.")] = "",
    as_json: JsonLinesOption = False,
) -> None:
    """
    Keep a checkpoint under a name, with the position of its sources; or list the tags.

    The checkpoint stays readable and restorable until `untag`, whatever the query retains.  `statelog
    fork --tag NAME` goes on from it.  The query may run meanwhile: the call waits up to 10 s until the sink
    of the micro-batch has taken its rows.  The same call may be repeated.  Exit status 1 if the checkpoint
    is no longer retained, or the sink takes longer.
    """
    store = open_location(location)
    if name is None:
        if checkpoint is not None or comment:
            raise UsageError("give the name of the tag to make, or no options to list the tags")
        _print_tags(store, location, as_json)
        raise typer.Exit(EXIT_OK)
    new = make_tag(
        location,
        name,
        checkpoint=checkpoint,
        checkpoint_location=checkpoint_location,
        comment=comment,
    )
    if as_json:
        print_json(_json(new))
    else:
        console().print(
            f"Checkpoint {new.checkpoint_id} of {redacted(location)} is kept as {name}.",
            markup=False,
            soft_wrap=True,
        )
    raise typer.Exit(EXIT_OK)


def untag(
    location: LocationArgument,
    name: Annotated[str, typer.Argument(help="Name of the tag.")],
    kind: Annotated[
        str, typer.Option(help="What has put it: tag, fork or reader; `statelog tag` lists them.")
    ] = TagKind.TAG.value,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Remove a tag; the next clean-up deletes what only the tag kept.

    --kind fork releases a fork, which can no longer be read if it still needs objects from here.
    A call without such a tag changes nothing and says so, so that an interrupted one may be repeated.
    """
    open_location(location)
    try:
        removed = remove_tag(location, name, kind=kind)
    except CheckpointError as error:
        if error.reason != "not_found":
            raise
        if as_json:
            print_json({"kind": kind, "name": name, "checkpoint_id": None})
        else:
            console().print(f"Nothing to remove: {error}.", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_OK) from None
    if as_json:
        print_json(_json(removed))
    else:
        console().print(
            f"{removed.kind.value} {name} of {redacted(location)} is removed; checkpoint "
            f"{removed.checkpoint_id} goes with the next clean-up unless it is retained.",
            markup=False,
            soft_wrap=True,
        )
    raise typer.Exit(EXIT_OK)


def fork(
    location: LocationArgument,
    new_location: Annotated[str, typer.Argument(help="The new state location, which is empty.")],
    *,
    checkpoint: CheckpointOption = None,
    tag_name: Annotated[
        str | None, typer.Option("--tag", help="Fork the checkpoint of this tag.")
    ] = None,
    checkpoint_location: QueryOption = None,
    new_checkpoint_location: Annotated[
        str | None,
        typer.Option(
            help="The checkpointLocation of the new query; the folder around NEW_LOCATION if that ends "
            "with /statelog."
        ),
    ] = None,
    state_only: Annotated[
        bool, typer.Option(help="Fork the state without the position of the sources.")
    ] = False,
    copy: Annotated[
        bool, typer.Option("--copy", help="Copy the objects, so that LOCATION is not needed.")
    ] = False,
    as_json: JsonLinesOption = False,
) -> None:
    """
    Go on from a checkpoint with a second query, next to the first, in constant time.

    Without --copy no state is copied: the new location refers to objects of LOCATION, which a tag keeps there until
    the fork needs them no more (`statelog gc --apply NEW_LOCATION` releases it).  Repeat an interrupted
    fork with the same command.  The query may run meanwhile, as for `tag`.  Exit status 1 if the checkpoint
    is not retained, or the sink of its micro-batch takes longer than 10 s.
    """
    open_location(location)
    new = make_fork(
        location,
        new_location,
        checkpoint=checkpoint,
        tag=tag_name,
        checkpoint_location=checkpoint_location,
        new_checkpoint_location=new_checkpoint_location,
        state_only=state_only,
        copy=copy,
    )
    query = new.query
    if as_json:
        print_json(
            {
                "fork_id": new.fork_id,
                "parent": new.parent,
                "location": new.location,
                "checkpoint_id": new.checkpoint_id,
                "batch_id": new.batch_id,
                "checkpoint_location": None if query is None else query.checkpoint_location,
                "query_id": None if query is None else query.query_id,
                "missing_files": list(new.missing_files),
            }
        )
        raise typer.Exit(EXIT_OK)
    out = console()
    for path in new.missing_files:
        out.print(
            Text(f"missing, the new query continues without its rows: {path}", "yellow"),
            soft_wrap=True,
        )
    out.print(
        f"{redacted(new_location)} goes on from checkpoint {new.checkpoint_id} of {redacted(location)}, after batch "
        f"{new.batch_id}.",
        markup=False,
        soft_wrap=True,
    )
    if query is None:
        out.print("Start a query there with adopt=True and a new checkpointLocation.")
    else:
        out.print("Start the new query with:")
        for option, value in (
            ("checkpointLocation", query.checkpoint_location),
            ("stateLocation", new.location),
        ):
            out.print(Text(f"  {option:<20}{value}"), soft_wrap=True)
    raise typer.Exit(EXIT_OK)


def _json(tag: Tag) -> dict[str, object]:
    return {
        "kind": tag.kind.value,
        "name": tag.name,
        "checkpoint_id": tag.checkpoint_id,
        "newest": tag.newest or None,
        "path": tag.path,
    }


def _print_tags(store: ObjectStore, location: str, as_json: bool) -> None:
    tags = list_tags(store)
    rows = []
    for each in tags:
        problem, created, facts = "", None, {}
        try:
            content = read_tag(store, each)
            created, facts = content.created_at_ms, content.facts
        except StatelogError as error:
            problem = str(error)
        if as_json:
            print_json(
                {**_json(each), "created_at_ms": created, "facts": facts, "problem": problem}
            )
        said = problem or str(facts.get("comment") or facts.get("location") or "")
        rows.append((each.kind.value, each.name, str(each.checkpoint_id), utc(created), said))
    if as_json:
        return
    if not rows:
        console().print(f"{redacted(location)} has no tags.", markup=False)
        return
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for head in ("kind", "name", "checkpoint", "created (UTC)", ""):
        table.add_column(head)
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)


def copy(
    location: LocationArgument,
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
    as_json: JsonOption = False,
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
