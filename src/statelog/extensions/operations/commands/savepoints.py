"""`statelog tag`, `fork` and `copy`: retain a checkpoint, continue from it, or move a location."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from statelog.checkpoint.listing import given_checkpoint_id
from statelog.checkpoint.retained import Tag, TagKind, list_tags
from statelog.checkpoint.tags import TagContent, read_tag
from statelog.cli import options
from statelog.cli.output import (
    open_location,
    plural,
    print_json,
    print_table,
    progress,
    say,
    say_dry_run,
    size_text,
    utc,
)
from statelog.errors import CheckpointNotFoundError, StatelogError, UsageError
from statelog.extensions.operations.copy_location import CopyProgress, copy_location
from statelog.extensions.operations.fork import fork as make_fork
from statelog.extensions.operations.savepoints import tag as make_tag
from statelog.extensions.operations.savepoints import untag
from statelog.redaction import redacted
from statelog.store import ObjectStore
from statelog.store import open_location as open_new
from statelog.store.location_store import OPTION


def tag(
    location: options.Location,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the tag. Omit it to list all tags."),
    ] = None,
    *,
    checkpoint: options.Checkpoint = None,
    checkpoint_location: options.Query = None,
    comment: Annotated[str, typer.Option(help="Comment to store with the tag.")] = "",
    remove: Annotated[
        bool,
        typer.Option(
            "--remove", help="Remove the tag. Without --apply, the command only prints the tag."
        ),
    ] = False,
    kind: Annotated[
        str, typer.Option(help="Kind of tag to remove: tag, fork or reader.")
    ] = TagKind.TAG.value,
    apply: options.Apply = False,
    as_json: options.Json = False,
) -> None:
    """
    Retain a checkpoint and its source position under a name; list or remove tags.

    The checkpoint can be read and restored until you remove the tag, no matter which checkpoints
    the query retains. To continue from it, use `statelog fork --checkpoint NAME`.  The query can
    keep running; the command waits up to 10 s for the sink to receive the rows of the micro-batch.
    If the command is interrupted, run it again with the same arguments. Exit status 1 if the
    checkpoint is no longer retained, or if the sink exceeds the time limit.

    --remove --apply removes a tag; the next garbage collection deletes objects that only the tag
    retained.  With --kind fork, this releases a fork; if the fork still needs objects in LOCATION,
    the fork can no longer be read.

    Examples:
        statelog tag s3://bucket/jobs/totals
        statelog tag s3://bucket/jobs/totals before-release --checkpoint 41
        statelog tag s3://bucket/jobs/totals before-release --remove --apply
    """
    store = open_location(location)
    if name is None:
        if remove or apply or checkpoint is not None or comment:
            raise UsageError("pass the name of the tag, or omit all options to list the tags")
        _print_tags(store, location, as_json)
        return
    if remove:
        _remove(location, name, kind, apply=apply, as_json=as_json)
        return
    if apply or kind != TagKind.TAG.value:
        raise UsageError(
            "--apply and --kind require --remove; creating a tag does not need --apply"
        )
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
        say(f"Checkpoint {new.checkpoint_id} of {redacted(location)} is retained as {name}.")


def _remove(location: str, name: str, kind: str, *, apply: bool, as_json: bool) -> None:
    try:
        removed = untag(location, name, kind=kind, apply=apply)
    except CheckpointNotFoundError as error:
        if as_json:
            facts = {"kind": kind, "name": name, "checkpoint_id": None}
            print_json({**facts, "dry_run": not apply})
        else:
            say(f"Nothing to remove: {error}.")
        return
    if as_json:
        print_json({**_json(removed), "dry_run": not apply})
        return
    outcome = "was removed" if apply else "would be removed"
    say(
        f"{removed.kind.value} {name} of {redacted(location)} {outcome}; the next garbage "
        f"collection deletes checkpoint {removed.checkpoint_id} unless it is retained."
    )
    if not apply:
        say_dry_run()


def _json(tag: Tag) -> dict[str, object]:
    return {
        "kind": tag.kind.value,
        "name": tag.name,
        "checkpoint_id": tag.checkpoint_id,
        "newest": tag.newest or None,
        "path": tag.path,
    }


def _print_tags(store: ObjectStore, location: str, as_json: bool) -> None:
    rows = []
    for tag in list_tags(store):
        content = TagContent(created_at_ms=0)
        problem = ""
        try:
            content = read_tag(store, tag)
        except StatelogError as error:
            problem = str(error)
        created = None if problem else content.created_at_ms
        facts = content.facts
        if as_json:
            more = {"created_at_ms": created, "facts": facts, "problem": problem}
            print_json({**_json(tag), **more})
        note = problem or str(facts.get("comment") or facts.get("location") or "")
        rows.append((tag.kind.value, tag.name, str(tag.checkpoint_id), utc(created), note))
    if as_json:
        return
    if rows:
        print_table(("kind", "name", "checkpoint", "created (UTC)", ""), rows)
    else:
        say(f"{redacted(location)} does not have tags.")


def fork(
    location: options.Location,
    new_location: Annotated[
        str,
        typer.Argument(
            metavar="NEW_LOCATION",
            help="New state location: a path or URL where nothing exists yet.",
        ),
    ],
    *,
    checkpoint: options.Checkpoint = None,
    checkpoint_location: options.Query = None,
    new_checkpoint_location: Annotated[
        str | None,
        typer.Option(
            help="The checkpointLocation of the new query. Default: the parent folder of "
            "NEW_LOCATION, if NEW_LOCATION ends with /statelog."
        ),
    ] = None,
    state_only: Annotated[
        bool,
        typer.Option("--state-only", help="Fork only the state, without the source position."),
    ] = False,
    copy: Annotated[
        bool,
        typer.Option("--copy", help="Copy the objects, so that the fork does not need LOCATION."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """
    Prepare a second query that starts from a checkpoint of the first one, in constant time.

    Without --copy, state is not copied: the new location refers to objects in LOCATION, and a tag
    retains them there until the fork no longer needs them (`statelog gc --apply NEW_LOCATION` then
    removes the tag).  If the command is interrupted, run it again with the same arguments. The
    query can keep running, as with `tag`. Exit status 1 if the checkpoint is not retained, or if
    the sink does not receive its micro-batch within 10 s.

    Examples:
        statelog fork s3://bucket/jobs/totals s3://bucket/jobs/totals-next --new-checkpoint-location s3://bucket/queries/next
        statelog fork s3://bucket/jobs/totals s3://bucket/queries/next/statelog --checkpoint before-release
        statelog fork s3://bucket/jobs/totals s3://bucket/jobs/copy --checkpoint 41 --state-only --copy
    """
    open_location(location)
    new = make_fork(
        location,
        new_location,
        checkpoint=checkpoint,
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
        return
    for path in new.missing_files:
        say((f"missing, so the new query continues without its rows: {path}", "yellow"))
    say(
        f"{redacted(new_location)} continues from checkpoint {new.checkpoint_id} of "
        f"{redacted(location)}, after batch {new.batch_id}."
    )
    if query is None:
        say("Start a query there with adopt=True and a new checkpointLocation.")
        return
    say("Start the new query with:")
    say(f"  {'checkpointLocation':<20}{query.checkpoint_location}")
    say(f"  {'stateLocation':<20}{new.location}")


def copy(
    location: options.Location,
    new_location: Annotated[
        str,
        typer.Argument(
            metavar="NEW_LOCATION",
            help="Destination of the copy: a path or URL where nothing exists yet.",
        ),
    ],
    *,
    checkpoint: options.Checkpoint = None,
    new_encryption: Annotated[
        str | None,
        typer.Option(
            help="Where to find the keys of the copy: env:NAME, file:PATH, or none for no encryption. "
            "Default: the keys of LOCATION."
        ),
    ] = None,
    parallelism: Annotated[
        int, typer.Option(help="Number of objects to copy at the same time.", min=1)
    ] = 4,
    as_json: options.Json = False,
) -> None:
    """
    Copy the retained checkpoints of a location, up to --checkpoint, to a different folder or store.

    The command verifies every object before and after writing it. If the command is interrupted,
    run it again: it verifies the objects that were already copied, but does not copy them again.
    Meanwhile, the query can keep running in LOCATION. To move a query, stop it before the final run
    of this command, then start it with stateLocation set to NEW_LOCATION and the same
    checkpointLocation.

    To encrypt a location, or to change its key, copy it with --new-encryption. The environment
    variable STATELOG_ENCRYPTION specifies the keys of LOCATION.

    Examples:
        statelog copy s3://bucket/jobs/totals gs://backup/jobs/totals
        statelog copy s3://bucket/jobs/totals s3://bucket/jobs/encrypted --new-encryption env:KEYS
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
            open_new(new_location, options={OPTION: new_encryption} if new_encryption else None),
            checkpoint_id=given_checkpoint_id(source, checkpoint),
            parallelism=parallelism,
            on_progress=show,
        )
    if as_json:
        print_json({"location": source.url, **dataclasses.asdict(report)})
        return
    say(
        f"{source.url} copied: {plural(len(report.checkpoints), 'checkpoint')} "
        f"({', '.join(map(str, report.checkpoints))}), {plural(report.objects, 'object')} verified "
        f"({size_text(report.size_bytes)}), {report.copied:,} of them copied by this call "
        f"({size_text(report.copied_bytes)})"
    )
    for parent in report.parents:
        say(f"also read from {parent}, a parent of this fork")
