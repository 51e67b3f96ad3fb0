"""The figures of a location, as plain values: `--json` prints them, and the page shows them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from statelog.report.bill import Bill
from statelog.report.findings import Finding
from statelog.report.restart import Restart
from statelog.report.skew import KeyGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFigures:
    """
    One checkpoint; None stands for what is not known of it.

    Args:
        checkpoint_id: Its number.
        state: retained, subsumed, damaged or incompatible.
        problem: Why it cannot be read, or "".
        created_at_ms: Milliseconds since 1970 (UTC).
        epoch: The claim under which it was committed: another number is another run.
        batch_id: Spark's number of the micro-batch.
        tasks, rows, keys, output_rows, state_entries: Counts of the micro-batch.
        change_bytes, output_bytes: Bytes of its changes, and of its staged rows.
        commit_bytes: Size of its `_metadata`.
        objects: Objects that it created, the commit included.
        snapshots, snapshot_bytes: Snapshots that it created.
        log_handles, log_bytes: The log after the snapshots, as of it.
        full_snapshots, full_snapshot_bytes: The snapshots that it refers to.
        durations_ms: By phase: plan, run, commit, deliver, clean_up, as far as known.
        task_ms: Phases inside of run, of the slowest task in each.
        task_retries, put_retries: Attempts of tasks that failed; puts that were repeated, of the
            claim or the commit before.
        uploads, upload_retries: Uploads of its tasks, and attempts of them after the first.
        upload_bytes, slowest_upload_ms: Their bytes before compression, and the longest one.
        upload_wait_ms: Time that tasks waited because too many bytes were in flight.
        rewound: Whether it was committed by `statelog rewind`, or went back to an older one.
    """

    checkpoint_id: int
    state: str
    problem: str = ""
    created_at_ms: int | None = None
    epoch: int | None = None
    batch_id: int | None = None
    tasks: int | None = None
    rows: int | None = None
    keys: int | None = None
    output_rows: int | None = None
    state_entries: int | None = None
    change_bytes: int | None = None
    output_bytes: int | None = None
    commit_bytes: int = 0
    objects: int | None = None
    snapshots: int | None = None
    snapshot_bytes: int | None = None
    log_handles: int | None = None
    log_bytes: int | None = None
    full_snapshots: int | None = None
    full_snapshot_bytes: int | None = None
    durations_ms: dict[str, int] = field(default_factory=dict)
    task_ms: dict[str, int] = field(default_factory=dict)
    task_retries: int | None = None
    put_retries: int | None = None
    uploads: int | None = None
    upload_retries: int | None = None
    upload_bytes: int | None = None
    slowest_upload_ms: int | None = None
    upload_wait_ms: int | None = None
    rewound: bool = False

    @property
    def total_ms(self) -> int | None:
        """Sum of the phases that are known; None if none is."""
        return sum(self.durations_ms.values()) if self.durations_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObjects:
    """
    The objects of one folder of the location.

    Args:
        kind: commits, log, snapshots, output, claims or other.
        objects, size_bytes: Their number and size.
        orphans, orphan_bytes: Those of them that no readable checkpoint needs and that are older
            than an hour.
    """

    kind: str
    objects: int
    size_bytes: int
    orphans: int = 0
    orphan_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """
    All figures of a location.

    Args:
        location: Its path or URL, without secrets.
        made_at_ms: When the figures were read, milliseconds since 1970 (UTC).
        version: Of statelog.
        query_id, operators, delivery, time_mode: The query, by the newest checkpoint.
        key_groups: Number of key groups of the job; None without a checkpoint.
        newest_id: The newest retained checkpoint, or None.
        checkpoints: All that are stored, ascending.
        older_changes: Checkpoint id and bytes of changes of checkpoints that are not stored any
            more, as far as the log after the snapshots still has them.
        stored: Objects by folder.
        restart: What a restart reads; None without a checkpoint.
        bill: Requests and storage; None without a checkpoint.
        skew: Keys and changes by key group, one for each operator; empty if not asked for.
        skew_problem: Why there is none, or "".
        findings: What stands out.
    """

    location: str
    made_at_ms: int
    version: str
    query_id: str = ""
    operators: tuple[str, ...] = ()
    delivery: str = ""
    time_mode: str = ""
    key_groups: int | None = None
    newest_id: int | None = None
    checkpoints: tuple[CheckpointFigures, ...] = ()
    older_changes: tuple[tuple[int, int], ...] = ()
    stored: tuple[StoredObjects, ...] = ()
    restart: Restart | None = None
    bill: Bill | None = None
    skew: tuple[KeyGroups, ...] = ()
    skew_problem: str = ""
    findings: tuple[Finding, ...] = ()

    @property
    def newest(self) -> CheckpointFigures | None:
        """The newest retained checkpoint."""
        checkpoints = [
            checkpoint
            for checkpoint in self.checkpoints
            if checkpoint.checkpoint_id == self.newest_id
        ]
        return checkpoints[0] if checkpoints else None

    @property
    def is_damaged(self) -> bool:
        """Whether a checkpoint is damaged."""
        return any(checkpoint.state == "damaged" for checkpoint in self.checkpoints)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)
