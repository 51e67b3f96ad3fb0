"""What a publication needs of a table: one kind for each table format."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from statelog.errors import StatelogError, UsageError
from statelog.operations.publish_rows import Deletes, TableRows

CHECKPOINT: Final = "statelog.checkpoint-id"
"""Name of the checkpoint's id in the facts of a table snapshot."""
POSITION: Final = "statelog.position"
"""Name of the checkpoint's position in the facts of a table snapshot, see `CheckpointPosition`."""
LOCATION: Final = "statelog.location"
"""Property of a table with the URL of its location."""


class CommitConflictError(StatelogError):
    """Another process changed the table since it was read."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """
    What a table has.

    Args:
        uuid: The id of the table.
        newest: The checkpoint of its current snapshot; None without one.
        position: The position of that checkpoint; "" without one.
        checkpoints: The checkpoint of each of its snapshots, by the id of the snapshot.
        tags: The checkpoint of each tag that statelog put.
    """

    uuid: str
    newest: int | None
    position: str
    checkpoints: Mapping[int, int]
    tags: Mapping[str, int]


class PublishableTable(Protocol):
    """
    A table whose snapshots are checkpoints of a location.

    It has one writer, statelog.  A commit is what the table has after it, compared with what the table
    has, so that it does not matter how an earlier attempt ended.

    Thread: one at a time.
    """

    @property
    def kind(self) -> str:
        """The table format, in lower-case letters."""
        ...

    @property
    def name(self) -> str:
        """Name of the table, for people."""
        ...

    @property
    def label(self) -> str:
        """What the names of the location's tags have of the name."""
        ...

    @property
    def deletes(self) -> Deletes:
        """The deleted positions of the table."""
        ...

    def close(self) -> None:
        """Close what was opened; further calls do nothing."""
        ...

    def load(self) -> PublishedTable | None:
        """
        Read what the table has; None if it does not exist.

        Raises:
            CommitConflictError: Another process changes it.
            StoreError: The catalog or the store failed.
            CorruptionError: Its metadata is damaged.

        Blocks: On the catalog or the store.
        """
        ...

    def create(self, schema: pa.Schema, source: Mapping[str, str]) -> PublishedTable:
        """
        Make the table, without rows.

        Args:
            schema: Its columns.
            source: What the table has, see `check_source`.

        Raises:
            UsageError: A column has a type that the format lacks.
            CommitConflictError: Another process made it.
            StoreError: The catalog or the store failed.

        Blocks: On the catalog or the store.
        """
        ...

    def check_source(self, source: Mapping[str, str]) -> None:
        """
        Check that the table was made for the same state.

        Args:
            source: Properties that statelog gives its tables: location, operator, variables.

        Raises:
            UsageError: The table has other ones.
        """
        ...

    def can_name(self, url: str) -> bool:
        """Return whether an object at a URL can be a file of the table, as it is."""
        ...

    def write(self, kind: str, data: pa.Buffer) -> str:
        """
        Write a file of the table, see `publish_rows.Write`.

        Raises:
            StoreError: The store failed.

        Blocks: On the store.
        """
        ...

    def commit(
        self,
        rows: TableRows | None,
        facts: Mapping[str, str],
        tags: Mapping[str, int],
        *,
        retain: int,
    ) -> PublishedTable:
        """
        Make rows the table; without a change of the table nothing is written.

        Args:
            rows: The rows, whose files are written; None for the rows that the table has.
            facts: What the new snapshot says of its checkpoint.
            tags: The checkpoint of each tag of the location.
            retain: Number of snapshots to keep besides those with a tag; >= 1.

        Raises:
            CommitConflictError: Another process changed the table since `load`.
            UsageError: The table cannot have the columns of the rows.
            StoreError: The catalog or the store failed.  The commit may have succeeded: `load` tells.

        Blocks: On the catalog and the store.
        """
        ...

    def clean_up(self, older_than: dt.datetime) -> int:
        """
        Delete files that statelog wrote and no snapshot of the table names; return how many.

        Args:
            older_than: Younger files are kept: another process may be about to commit them.

        Raises:
            StoreError: The store failed.

        Blocks: On the store.
        """
        ...


def check_properties(name: str, properties: Mapping[str, str], source: Mapping[str, str]) -> None:
    """
    Check that a table was made for the same state, see `PublishableTable.check_source`.

    Raises:
        UsageError: It was not.
    """
    for key, text in source.items():
        if properties.get(key) != text:
            raise UsageError(
                f"the table {name} has the property {key} {properties.get(key)!r}, not {text!r}: "
                "publish to another table, or drop this one"
            )
