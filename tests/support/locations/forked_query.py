"""Forks of the location of a query, and their owners."""

import datetime as dt

from tests.support.locations.checkpoints import ManualClock, read_log
from tests.support.locations.rewound_query import Query

import statelog
from statelog.checkpoint import CheckpointCoordinator
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.clean_up import collect_garbage
from statelog.checkpoint.restore import find_checkpoint
from statelog.options import CheckpointOptions
from statelog.store import LocationStore, open_existing_store


def forked(query: Query, name: str = "new", **options: object) -> statelog.Fork:
    root = query.folder.parent
    return statelog.fork(
        root / "state",
        root / name,
        new_checkpoint_location=root / f"{name}-query",
        **options,  # type: ignore[arg-type]
    )


def location(query: Query, name: str = "new") -> LocationStore:
    return open_existing_store(str(query.folder.parent / name))


def values(store: LocationStore, checkpoint_id: int | None = None) -> list[bytes]:
    return [bytes(one.value) for one in read_log(store, find_checkpoint(store, checkpoint_id).log)]


def sweep(store: LocationStore, *, dry_run: bool = False):  # type: ignore[no-untyped-def]
    later = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
    return collect_garbage(store, min_age=dt.timedelta(0), apply=not dry_run, now=later)


def go_on(query: Query, name: str = "new") -> CheckpointCoordinator:
    one = CheckpointCoordinator(
        location(query, name),
        owner_id="heir",
        max_parallelism=8,
        options=CheckpointOptions(retained=1),
        clock_ms=ManualClock(),
    )
    one.claim()
    one.restore()
    return one


def record_of(query: Query, checkpoint_id: int, name: str = "new") -> dict[str, object]:
    found = find_checkpoint(location(query, name), checkpoint_id)
    return BatchRecord.of(found).to_properties()
