"""Forks of the location of a query, and their owners."""

import datetime as dt
from typing import Any

import pytest
from tests.support.locations.checkpoints import log_in_file, read_log, run_checkpoint, started
from tests.support.locations.rewound_query import ALL, Query

import statelog
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.restore import find_checkpoint
from statelog.extensions.operations import fork
from statelog.model import FileStateHandle, MaterializedHandle, TaskStateSnapshot
from statelog.store import LocationStore, ObjectStore, open_existing_store


def forked(query: Query, name: str = "new", **options: Any) -> statelog.Fork:
    root = query.folder.parent
    if not options.get("state_only"):
        options = {"new_checkpoint_location": root / f"{name}-query", **options}
    return statelog.fork(root / "state", root / name, **options)


def location(query: Query, name: str = "new") -> LocationStore:
    return open_existing_store(str(query.folder.parent / name))


def values(store: LocationStore, checkpoint_id: int | None = None) -> list[bytes]:
    return [
        bytes(change.value) for change in read_log(store, find_checkpoint(store, checkpoint_id).log)
    ]


def forked_until(query: Query, step: str, **options: object) -> None:
    """Fork up to a step, at which the process dies."""

    class Killed(Exception):
        pass

    def fail_point(name: str) -> None:
        if name == f"fork-{step}":
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(fork, "fail_point", fail_point)
        forked(query, **options)


def sweep(store: ObjectStore, *, dry_run: bool = False) -> Any:
    later = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    return collect_garbage(store, min_age=dt.timedelta(0), apply=not dry_run, now=later)


def commit_in(
    query: Query, value: bytes, *, base: int = 5, name: str = "new", is_independent: bool = False
) -> None:
    """Let a new owner of a fork commit a change; with a snapshot the fork needs no parent."""
    store, snapshot = location(query, name), None
    owner = started(store, "owner of the fork", retained=1)
    if is_independent:
        store.put("taskowned/s", b"state")
        snapshot = MaterializedHandle(ALL, base, FileStateHandle("taskowned/s", 5))
    task = TaskStateSnapshot(ALL, log_in_file(store, ALL, [[(1, value)]]), snapshot)
    properties = BatchRecord.of(find_checkpoint(store, base)).to_properties()
    run_checkpoint(owner, owner.next_checkpoint_id, [task], properties=properties)
    owner.clean_up()
