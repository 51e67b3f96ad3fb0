"""
A published Delta table in a folder, written with deltalake.

A version is a commit whose information records the facts of its checkpoint, and the versions of the
checkpoints that are retained.  A commit replaces the rows of the key groups that changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from statelog.errors import UsageError
from statelog.extensions.publish.table import (
    CHECKPOINT,
    FILE_BYTES,
    CommitConflictError,
    PublishedTable,
    Replacement,
    explained,
    retained_versions,
)
from statelog.extras import require
from statelog.runtime.fail_points import fail_point
from statelog.store import open_store

if TYPE_CHECKING:
    from deltalake import DeltaTable as Table

_VERSIONS: Final = "statelog.versions"
"""The retained versions, each with its checkpoint, as JSON."""
_RECENT: Final = 16
"""Number of commits to read for the newest published version; all if it is older."""


class DeltaTable:
    """
    A Delta table in a folder; see `PublishableTable`.

    Thread: one at a time.
    """

    kind = "delta"

    def __init__(
        self, folder: str | os.PathLike[str], options: Mapping[str, object] | None = None
    ) -> None:
        require("publishing to Delta", "delta", "deltalake")
        self.name = open_store(folder, storage_options=options).url
        self._options = {"allow_http": "true"} | {
            key: str(value) for key, value in (options or {}).items()
        }
        self._table: Table | None = None
        self._contents: PublishedTable | None = None

    def close(self) -> None:
        """Do nothing, because there is no open connection."""

    def load(self) -> PublishedTable | None:
        """Read what the table contains, or return None if it does not exist."""
        from deltalake import DeltaTable as Table
        from deltalake.exceptions import TableNotFoundError

        with explained(f"cannot load the table {self.name}"):
            try:
                self._table = Table(self.name, storage_options=self._options)
            except TableNotFoundError:
                self._table = self._contents = None
                return None
            is_current = True
            for commit in _commits(self._table):
                if CHECKPOINT in commit:
                    break
                is_current = is_current and str(commit.get("operation")).startswith("VACUUM")
            else:
                commit = {}
            versions = json.loads(str(commit.get(_VERSIONS, "{}")))
            self._contents = PublishedTable(
                facts={key: text for key, text in commit.items() if isinstance(text, str)},
                is_current=is_current,
                checkpoints={int(version): checkpoint for version, checkpoint in versions.items()},
                row_count=self._table.count(),
            )
        return self._contents

    def replace(self, rows: Replacement, tags: Mapping[str, int], retain: int) -> None:
        """Commit a new version of the loaded table, creating the table if it is missing."""
        from deltalake import CommitProperties, Schema, write_deltalake
        from deltalake.exceptions import CommitFailedError

        try:
            Schema.from_arrow(rows.schema)
        except Exception as error:
            raise UsageError(
                f"the state cannot be stored as a Delta table: {error}; select variables with --variable"
            ) from error
        version = 0 if self._table is None else self._table.version() + 1
        before = {} if self._contents is None else self._contents.checkpoints
        versions = {**before, version: int(rows.facts[CHECKPOINT])}
        retained = retained_versions(versions, tags, retain)
        facts = {**rows.facts, _VERSIONS: json.dumps(retained)}
        with explained(f"cannot commit to the table {self.name}", CommitFailedError):
            fail_point("publish-written")
            write = partial(
                write_deltalake,
                data=rows.reader(),
                storage_options=self._options,
                target_file_size=FILE_BYTES,
                # A conflict is resolved by the publisher, which loads the table again.
                commit_properties=CommitProperties(custom_metadata=facts, max_commit_retries=0),
            )
            if self._table is None:
                write(self.name, mode="error")
            else:
                schema_mode = "overwrite" if rows.is_new_schema else None
                predicate = rows.predicate
                write(self._table, mode="overwrite", predicate=predicate, schema_mode=schema_mode)

    def tidy(self, tags: Mapping[str, int], retain: int) -> PublishedTable:
        """Delete files that no retained version of the table needs."""
        if self._table is None or self._contents is None:
            raise CommitConflictError(f"the table {self.name} was deleted in the meantime")
        with explained(f"cannot tidy the table {self.name}"):
            vacuum = partial(
                self._table.vacuum,
                retention_hours=0,
                enforce_retention_duration=False,
                keep_versions=sorted(self._contents.checkpoints),
            )
            # Without a file to delete, it would still commit two versions.
            if vacuum(dry_run=True):
                vacuum(dry_run=False)
        return self._contents


def _commits(table: Table) -> Iterator[dict[str, object]]:
    """Yield the commit information, newest first."""
    recent = table.history(_RECENT)
    yield from recent
    if len(recent) == _RECENT:
        yield from table.history()[_RECENT:]
