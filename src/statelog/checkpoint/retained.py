"""
Find the checkpoints that a location's newest checkpoint and its tags retain.

One listing of the tags tells a clean-up what it must keep; see `statelog.checkpoint.tags`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from statelog.checkpoint.history import Entries, may_be_claim, present_ids
from statelog.errors import (
    ObjectNotFoundError,
)
from statelog.format.checkpoint_record import CLAIM_BYTES_MAX
from statelog.model import CompletedCheckpoint
from statelog.model.checkpoint import Pin, pinned
from statelog.store import PATHS, ObjectStore
from statelog.store.paths import parse_tag


class TagKind(enum.Enum):
    """The kinds of pins."""

    TAG = "tag"
    """A name that a person gave."""
    FORK = "fork"
    """A location that reads objects of the checkpoint."""
    READER = "reader"
    """The position of a reader that follows the location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """
    A tag in a location.

    Args:
        kind: What pins the checkpoint.
        name: Its name, unique among the tags of its kind.
        checkpoint_id: The pinned checkpoint.
        newest: Of a reader: this checkpoint and later ones are pinned while they are among this
            many newest checkpoints.  0 for the other kinds.
        path: Its object.
    """

    kind: TagKind
    name: str
    checkpoint_id: int
    newest: int = 0
    path: str = ""

    @property
    def pin(self) -> Pin:
        """The checkpoints that the tag pins."""
        return Pin(self.checkpoint_id, self.newest)


def list_tags(store: ObjectStore) -> list[Tag]:
    """
    Return all tags, by kind and name.

    Objects of a kind that a newer statelog made are not returned; they pin nothing.
    """
    kinds = {kind.value: kind for kind in TagKind}
    tags = []
    for info in store.list(PATHS.tags):
        parsed = parse_tag(info.path)
        if parsed is not None and parsed[0] in kinds:
            kind, name, checkpoint_id, newest = parsed
            tags.append(
                Tag(
                    kind=kinds[kind],
                    name=name,
                    checkpoint_id=checkpoint_id,
                    newest=newest,
                    path=info.path,
                )
            )
    return sorted(tags, key=lambda tag: (tag.kind.value, tag.name, tag.checkpoint_id))


def read_pins(store: ObjectStore) -> tuple[Pin, ...]:
    """Return the checkpoints pinned by the tags of a location."""
    return tuple(tag.pin for tag in list_tags(store))


def retained_ids(
    store: ObjectStore, newest: CompletedCheckpoint, ids: Sequence[int]
) -> tuple[int, ...]:
    """Return the restorable checkpoints, either retained by *newest* or pinned, ascending."""
    return retained_with(store, read_pins(store), newest, ids)


def retained_with(
    store: ObjectStore,
    pins: Sequence[Pin],
    newest: CompletedCheckpoint,
    ids: Sequence[int],
) -> tuple[int, ...]:
    """Return the ids among *ids* that a newest checkpoint and pins retain, without claims."""
    restorable = retained_among(pins, newest, ids)
    # A reader pins all numbers from its position on, also the numbers of claims.
    return tuple(
        checkpoint_id
        for checkpoint_id in restorable
        if checkpoint_id in newest.retained or not _is_claim(store, checkpoint_id)
    )


def _is_claim(store: ObjectStore, number: int) -> bool:
    """Return whether an entry is a claim, without reading entries that are too large to be one."""
    try:
        is_small = store.head(PATHS.metadata(number)).size_bytes <= CLAIM_BYTES_MAX
    except ObjectNotFoundError:
        return False
    return is_small and may_be_claim(store, number)


def retained_among(
    pins: Sequence[Pin], newest: CompletedCheckpoint, ids: Sequence[int]
) -> tuple[int, ...]:
    """Return the checkpoints in *ids* that can be restored; see `retained_ids`."""
    pinned_ids = pinned(pins, ids, newest.checkpoint_id)
    return tuple(sorted({*newest.retained, *pinned_ids}))


def retained_checkpoints(store: ObjectStore) -> tuple[int, ...]:
    """Return a location's checkpoints that can be restored, in ascending order."""
    ids = present_ids(store)
    newest = Entries(store, ids).newest()
    return () if newest is None else retained_ids(store, newest, ids)


def delete_tag(store: ObjectStore, tag: Tag) -> None:
    """Unpin a checkpoint; the query's next clean-up or a garbage collection deletes it."""
    store.delete([tag.path])
