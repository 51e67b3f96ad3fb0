"""Extend PyIceberg's commits beyond its public API, for sinks and published tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table import Transaction
    from pyiceberg.table.update.snapshot import _SnapshotProducer


def keep_files_of_failed_commits(commit: Transaction) -> None:
    """
    Make PyIceberg keep the files of every attempt at *commit*.

    PyIceberg deletes the files of an attempt that it takes for failed.  The answer may have been
    lost, or the catalog may have stored the commit later: then the files are live.
    """
    register = commit._register_snapshot_producer

    def register_without_deletion(producer: _SnapshotProducer[Transaction]) -> None:
        for method in ("_cleanup_uncommitted", "_clean_all_uncommitted"):
            setattr(producer, method, lambda: None)
        register(producer)

    commit._register_snapshot_producer = register_without_deletion  # type: ignore[method-assign]
