"""
The position of a reader that follows a location, stored in the location under a name.

It is a tag of the kind `READER` (see `statelog.checkpoint.tags`): the checkpoint up to which was read
and all newer ones are kept by clean-ups, within a bound, so that a reader that never comes back does
not fill the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from statelog.checkpoint.tags import Tag, TagKind, check_name, delete_tag, list_tags, put_tag
from statelog.store import LocationPaths, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """
    Moves the position of one reader.

    Args:
        store: The store of the location.
        paths: The location in the store.
        name: Name of the reader.
        newest: Its position holds checkpoints only among so many newest ids; >= 1.
        clock_ms: Milliseconds since 1970 (UTC).

    Raises:
        UsageError: The name has other characters than letters, digits, ".", "_" and "-".
    """

    store: ObjectStore
    paths: LocationPaths
    name: str
    newest: int
    clock_ms: Callable[[], int]

    def __post_init__(self) -> None:
        check_name(self.name)

    def current(self) -> int | None:
        """
        Return the checkpoint up to which the reader has read; None for a new one.

        Blocks: On the store, one listing.
        """
        return max((one.checkpoint_id for one in self._tags()), default=None)

    def move(self, checkpoint_id: int) -> None:
        """
        Note that all up to a checkpoint was read.

        The new position is put before the old one is deleted, so that no clean-up in between deletes
        what was not read.

        Raises:
            CheckpointError: The checkpoint is not retained any more (`reason` "subsumed").
            StoreError: The store failed.

        Blocks: On the store.
        """
        before = self._tags()
        if not any(
            (one.checkpoint_id, one.newest) == (checkpoint_id, self.newest) for one in before
        ):
            tag = Tag(
                kind=TagKind.READER,
                name=self.name,
                checkpoint_id=checkpoint_id,
                newest=self.newest,
            )
            put_tag(self.store, self.paths, tag, clock_ms=self.clock_ms)
        for one in before:
            if (one.checkpoint_id, one.newest) != (checkpoint_id, self.newest):
                delete_tag(self.store, one)

    def remove(self) -> None:
        """
        Forget the position; what it kept may be deleted.

        Blocks: On the store.
        """
        for one in self._tags():
            delete_tag(self.store, one)

    def _tags(self) -> list[Tag]:
        tags = list_tags(self.store, self.paths)
        return [one for one in tags if one.kind is TagKind.READER and one.name == self.name]
