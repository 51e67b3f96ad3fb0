"""Locations with figures that a test knows."""

from dataclasses import replace
from pathlib import Path

from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import log_in_file, run_checkpoint, started
from tests.support.locations.histories import History

from statelog.checkpoint.batch_record import BatchRecord
from statelog.extensions.report import Figures
from statelog.extensions.report.figures import Finding
from statelog.format.buffers import checksum
from statelog.model import FileStateHandle, KeyGroupRange, MaterializedHandle, TaskStateSnapshot
from statelog.store import ObjectStore, open_store

ALL = KeyGroupRange(0, 7)
SNAPSHOT = b"s" * 100
NASTY = "</script><script>alert(1)</script>"
"""A name that is a script where it is not escaped."""


def named(figures: Figures, name: str) -> Figures:
    """Return figures in which each name and each text of a location is *name*."""
    damaged = replace(figures.checkpoints[0], state="damaged", problem=name, created_at_ms=None)
    return replace(
        figures, location=name, query_id=name, operators=(name,), delivery=name,
        skew=tuple(replace(groups, operator=name) for groups in figures.skew),
        checkpoints=(damaged, *figures.checkpoints[1:]), findings=(Finding("damage", name),),
    )  # fmt: skip


def record(batch_id: int, **values: object) -> BatchRecord:
    """Return the record of a micro-batch whose figures follow from its number."""
    numbers = {
        "batch_id": batch_id, "tasks": 2, "rows": 10 * batch_id, "keys": batch_id,
        "output_rows": batch_id, "state_entries": 100 + batch_id, "delta_bytes": 1000 + batch_id,
        "output_bytes": 7,
    }  # fmt: skip
    return one_operator(**(numbers | values))


def small_job(folder: Path) -> ObjectStore:
    """
    Write the checkpoints 1 to 4, of which the last two are retained; return the store.

    Checkpoint 1 is deleted, and its changes are still in the log.  Checkpoint 3 has a snapshot of
    the key groups from 4 on; the log before it counts for the others only.
    """
    store = open_store(str(folder))
    run = started(store, retained=2)
    costs: list[dict[str, object]] = [
        {},
        {"milliseconds": {"plan": 10, "run": 90}, "retries": {"tasks": 0, "puts": 0}, "objects": 1},
        {
            "milliseconds": {"plan": 11, "run": 91},
            "previous_ms": {"commit": 5, "deliver": 6, "clean_up": 7},
            "task_milliseconds": {"process": 80}, "retries": {"tasks": 2, "puts": 1}, "uploads": 3,
            "upload_attempts": 5, "upload_retries": 2, "upload_bytes": 70, "slowest_upload_ms": 9,
            "extras": {"late": 4}, "objects": 2,
        },
        {
            "milliseconds": {"plan": 12, "run": 92},
            "previous_ms": {"commit": 8, "deliver": 9, "clean_up": 10},
            "retries": {"tasks": 0, "puts": 0}, "objects": 1,
        },
    ]  # fmt: skip
    for batch_id, values in enumerate(costs):
        checkpoint_id = run.next_checkpoint_id
        changes = [(group, b"x" * (1 + group)) for group in range(8)]
        log = log_in_file(store, ALL, [changes], checkpoint_id)
        snapshot = None
        if batch_id == 2:
            store.put("taskowned/s", SNAPSHOT)
            handle = FileStateHandle("taskowned/s", len(SNAPSHOT), checksum([SNAPSHOT]))
            snapshot = MaterializedHandle(KeyGroupRange(4, 7), checkpoint_id, handle)
        task = TaskStateSnapshot(ALL, log, snapshot)
        properties = record(batch_id, **values).to_properties()
        run_checkpoint(run, checkpoint_id, [task], properties=properties)
        run.clean_up()
    return store


class CostlyHistory(History):
    """A random history whose records have costs too."""

    def record(self) -> BatchRecord:
        schema = self.model.schema.to_json()
        rows = self.rng.randrange(1000)
        return one_operator(
            schema=schema, time_mode="processingtime", now_ms=self.now_ms,
            batch_id=len(self.expected), rows=rows, keys=rows // 3, output_rows=rows // 2,
            state_entries=sum(len(value) for value in self.model.entries.values()),
            delta_bytes=rows * 10, output_bytes=rows * 2,
            milliseconds={"plan": 5, "run": 50 + rows // 10},
            previous_ms={"commit": 9, "deliver": rows // 20, "clean_up": 2},
            task_milliseconds={"input": 9, "process": 40},
            retries={"tasks": int(rows > 900), "puts": 0}, objects=1, object_bytes=500,
        )  # fmt: skip
