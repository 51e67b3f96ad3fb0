"""
Recognize a fork that an earlier call began or finished.

A fork consists of several objects, and a call may end between any two of them: the reference to the
parent, the tag in the parent, the files of the new checkpointLocation, the copied objects, the
checkpoint.  Each of them has the id of the fork or is derived from it.  The tag also stores the files
of the source position.  So a repeated call writes the same bytes, whatever the query of the parent has
done meanwhile.

A reference without a tag in the parent is ignored: the call that put it did not write anything else.
Garbage collection of the fork deletes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import msgspec

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entry, present_ids, read_checkpoint, read_entry
from statelog.checkpoint.tags import Tag, TagKind, list_tags, read_tag
from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    ObjectNotFoundError,
    UsageError,
)
from statelog.format.claim_record import ClaimRecord
from statelog.model import CompletedCheckpoint, Json
from statelog.store import PATHS, LocationStore, ObjectStore
from statelog.store.location_store import is_fork_id, parse_parent_path
from statelog.store.parents import ParentReference

FORKED_FROM: Final = "forked_from"
"""Property of the first checkpoint of a fork: parent and checkpoint, as in the reference."""
_OWNER: Final = "fork-"


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunFork:
    """
    A fork of an earlier call.

    Args:
        fork_id: Its id.
        checkpoint_id: The checkpoint that is forked.
        tag: The tag in the parent; None if it was not put yet, or was released.
        checkpoint: The first checkpoint of the new location; None if it was not committed yet.
    """

    fork_id: str
    checkpoint_id: int
    tag: Tag | None = None
    checkpoint: CompletedCheckpoint | None = None

    @property
    def needs_parent(self) -> bool:
        """Whether the checkpoint refers to objects of the parent."""
        paths = () if self.checkpoint is None else self.checkpoint.referenced_paths()
        return any(parse_parent_path(path) is not None for path in paths)

    def is_of(self, checkpoint_location: str | None) -> bool:
        """Return whether the committed checkpoint is of a query with this checkpointLocation."""
        if self.checkpoint is None:
            return False
        record = BatchRecord.of(self.checkpoint)
        if checkpoint_location is None:
            return record.query_id != query_id_of(self.fork_id)
        return record.checkpoint_location == checkpoint_location

    def files(self, parent: ObjectStore) -> dict[str, bytes] | None:
        """
        Return the files of the source position that the tag stores; None without them.

        Raises:
            CorruptionError: The tag is damaged.
            StoreError: The store failed.

        Blocks: On the store of the parent.
        """
        return (read_tag(parent, self.tag).files or None) if self.tag is not None else None


def begun_fork(
    new: LocationStore, parent: LocationStore, checkpoint_id: int | None
) -> BegunFork | None:
    """
    Return the fork that an earlier call of the same arguments began in *new*; None without one.

    Args:
        new: The new location.
        parent: The parent's location.
        checkpoint_id: The checkpoint to fork; None for the newest one.

    Raises:
        UsageError: The location is in use, or a fork of something else was begun in it.
        CheckpointError: A reference to a parent is damaged.
        StoreError: A store failed.

    Blocks: On both stores.
    """
    entries = _entries(new)
    ids = [number for number, entry in entries.items() if not isinstance(entry, ClaimRecord)]
    if ids or any(not is_claim_of_fork(entry) for entry in entries.values()):
        finished = _finished(new, parent, ids[0]) if len(ids) == 1 else None
        if finished is None or checkpoint_id not in (None, finished.checkpoint_id):
            raise in_use(new)
        return finished
    begun = _referred(new, parent, checkpoint_id)
    # The claim of a fork says which number is the next one, so that only this fork can go on here.
    owners = {entry.owner_id for entry in entries.values() if isinstance(entry, ClaimRecord)}
    if owners and (begun is None or owners != {owner_of(begun.fork_id)}):
        raise in_use(new)
    return begun


def _referred(
    new: LocationStore, parent: LocationStore, checkpoint_id: int | None
) -> BegunFork | None:
    """Return the fork whose reference is in *new*, where no checkpoint was committed yet."""
    tags = {tag.name: tag for tag in list_tags(parent) if tag.kind is TagKind.FORK}
    begun = None
    for info in list(new.list(PATHS.parents)):
        fork_id = info.path.removeprefix(f"{PATHS.parents}/")
        if not is_fork_id(fork_id):
            continue
        reference, tag = ParentReference.read(new, fork_id), tags.get(fork_id)
        is_same = checkpoint_id in (None, reference.checkpoint_id)
        if reference.location != parent.url or (tag is not None and not is_same):
            raise _begun_elsewhere(new, reference, fork_id)
        if tag is not None:
            return BegunFork(fork_id=fork_id, checkpoint_id=tag.checkpoint_id, tag=tag)
        if checkpoint_id is not None and is_same:
            begun = BegunFork(fork_id=fork_id, checkpoint_id=checkpoint_id)
    return begun


def first_properties(reference: ParentReference) -> dict[str, Json]:
    """Return the properties by which the first checkpoint of a fork is recognized."""
    return {FORKED_FROM: msgspec.to_builtins(reference)}


def owner_of(fork_id: str) -> str:
    """Return the owner of the first checkpoint of a fork."""
    return _OWNER + fork_id


def query_id_of(fork_id: str) -> str:
    """Return the id of the new query, the same when the call is repeated."""
    digits = hashlib.sha256(fork_id.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def _entries(new: LocationStore) -> dict[int, Entry | None]:
    """Return the entries of a location by their numbers; None for one that cannot be read."""
    entries: dict[int, Entry | None] = {}
    for number in present_ids(new):
        try:
            entries[number] = read_entry(new, number)
        except ObjectNotFoundError:
            continue
        except (CorruptionError, IncompatibleFormatError):
            entries[number] = None
    return entries


def is_claim_of_fork(entry: Entry | None) -> bool:
    """Return whether an entry is the claim of a fork, after which its checkpoint follows."""
    return isinstance(entry, ClaimRecord) and entry.owner_id.startswith(_OWNER)


def is_own_claim(new: LocationStore, owner: str) -> bool:
    """
    Return whether the only entry of a location is the claim of this fork.

    Blocks: On the store.
    """
    claims = [entry for entry in _entries(new).values() if isinstance(entry, ClaimRecord)]
    return [claim.owner_id for claim in claims] == [owner]


def in_use(new: ObjectStore) -> UsageError:
    """Return the error for a location that has state."""
    return UsageError(f"{new.url} holds state already; fork into an empty location")


def _finished(new: LocationStore, parent: LocationStore, checkpoint_id: int) -> BegunFork | None:
    """Return the fork of *parent* whose first checkpoint is the only one of *new*."""
    try:
        checkpoint = read_checkpoint(new, checkpoint_id).checkpoint
        origin = msgspec.convert(checkpoint.properties.get(FORKED_FROM), ParentReference)
    except (ObjectNotFoundError, CorruptionError, IncompatibleFormatError, msgspec.ValidationError):
        return None
    same = ParentReference(location=parent.url, checkpoint_id=checkpoint_id)
    if origin != same or not checkpoint.owner_id.startswith(_OWNER):
        return None
    return BegunFork(
        fork_id=checkpoint.owner_id.removeprefix(_OWNER),
        checkpoint_id=checkpoint_id,
        checkpoint=checkpoint,
    )


def _begun_elsewhere(new: ObjectStore, reference: ParentReference, fork_id: str) -> UsageError:
    return UsageError(
        f"a fork of checkpoint {reference.checkpoint_id} of {reference.location} was begun in "
        f"{new.url} and not finished; repeat that call, or use another location. `statelog untag "
        f"{reference.location} {fork_id} --kind fork` lets the parent delete the checkpoint"
    )
