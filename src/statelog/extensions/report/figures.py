"""The figures of a location as plain values, for `--json` and the HTML page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from statelog.extensions.report import texts
from statelog.extensions.report.bill import Bill
from statelog.extensions.report.restart import Restart
from statelog.extensions.report.skew import KeyGroups, largest_of
from statelog.metrics.table import BatchFigures
from statelog.model import JsonObject

# From where on a figure is a finding.
_UNEVEN: Final = 3.0
"""The keys of a key group, as a multiple of the mean."""
_LONG_LOG: Final = 2.0
"""The bytes of the log, as a multiple of the snapshots."""
_MIN_BYTES: Final = 1024 * 1024
"""Shorter logs are not reported."""
_LONG_RESTART_S: Final = 10.0
"""Faster restarts are not reported, however long the log is."""
_DOMINANT: Final = 0.6
"""The share of one phase in the time of the micro-batches."""
_MIN_TOTAL_MS: Final = 1000
"""Below this total time, no dominant phase is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFigures:
    """
    The figures of one checkpoint; None stands for an unknown value.

    Args:
        checkpoint_id: Its number.
        state: retained, subsumed, damaged or incompatible.
        problem: Why it cannot be read, or "".
        created_at_ms: Milliseconds since 1970 (UTC).
        epoch: The claim under which it was committed: another number is another run.
        batch_id: Spark's number of the micro-batch.
        figures: The figures of the micro-batch, with the phases after the commit as far as known.
        commit_bytes: Size of its `_metadata`.
        objects: Objects that it created, the commit included.
        snapshots, snapshot_bytes: Snapshots that it created.
        log_handles, log_bytes: The log after the snapshots, as of it.
        full_snapshots, full_snapshot_bytes: The snapshots that it refers to.
        task_retries, put_retries: Attempts of tasks that failed; puts that were repeated, of the
            claim or the commit before.
        rewound: Whether it was committed by `statelog rewind`, or went back to an older one.
    """

    checkpoint_id: int
    state: str
    problem: str = ""
    created_at_ms: int | None = None
    epoch: int | None = None
    batch_id: int | None = None
    figures: BatchFigures | None = None
    commit_bytes: int = 0
    objects: int | None = None
    snapshots: int | None = None
    snapshot_bytes: int | None = None
    log_handles: int | None = None
    log_bytes: int | None = None
    full_snapshots: int | None = None
    full_snapshot_bytes: int | None = None
    task_retries: int | None = None
    put_retries: int | None = None
    rewound: bool = False

    @property
    def state_entries(self) -> int | None:
        """Number of entries in all state variables before the micro-batch."""
        return None if self.figures is None else self.figures.state_entries


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObjects:
    """
    The objects in one folder of the location.

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
    def batches(self) -> list[BatchFigures]:
        """The known figures of the micro-batches that created the stored checkpoints."""
        batches = (checkpoint.figures for checkpoint in self.checkpoints)
        return [batch for batch in batches if batch is not None]

    @property
    def is_damaged(self) -> bool:
        """Whether any checkpoint is damaged."""
        return any(checkpoint.state == "damaged" for checkpoint in self.checkpoints)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """
    A notable fact about a location.

    Args:
        level: "damage", "attention" or "note".
        text: What was found, and what to do.
    """

    level: str
    text: str


def findings_of(figures: Figures) -> tuple[Finding, ...]:
    """Return the notable facts about a location, the worst ones first."""
    findings = [*_damage(figures), *_retries(figures), *_restart(figures), *_skew(figures)]
    findings += [*_orphans(figures), *_runs(figures), *_phases(figures)]
    order = ("damage", "attention", "note")
    return tuple(sorted(findings, key=lambda finding: order.index(finding.level)))


def _damage(figures: Figures) -> Iterator[Finding]:
    for checkpoint in figures.checkpoints:
        if checkpoint.state == "damaged":
            yield Finding(
                "damage", f"Checkpoint {checkpoint.checkpoint_id} is damaged: {checkpoint.problem}"
            )
        elif checkpoint.state == "incompatible":
            yield Finding("attention", checkpoint.problem)
    if figures.skew_problem:
        yield Finding("attention", f"The key groups were not counted: {figures.skew_problem}")


def _retries(figures: Figures) -> Iterator[Finding]:
    tasks = sum(checkpoint.task_retries or 0 for checkpoint in figures.checkpoints)
    puts = sum(checkpoint.put_retries or 0 for checkpoint in figures.checkpoints)
    if tasks:
        yield Finding(
            "attention",
            f"Tasks were repeated {texts.plural(tasks, 'time')} after a failed attempt; the executors' "
            "logs show the cause.",
        )
    if puts:
        yield Finding(
            "attention",
            f"Puts of claims and commits were repeated {texts.plural(puts, 'time')} because the "
            "store reported that the name exists.",
        )
    repeated = sum(batch.upload_retries for batch in figures.batches)
    if repeated:
        uploads = sum(batch.uploads for batch in figures.batches)
        yield Finding(
            "note",
            f"Uploads of tasks were repeated {texts.plural(repeated, 'time')}, out of "
            f"{texts.plural(uploads, 'upload')}: the store failed or was slow.",
        )


def _restart(figures: Figures) -> Iterator[Finding]:
    newest = figures.newest
    if newest is None or newest.log_bytes is None or newest.full_snapshot_bytes is None:
        return
    restart = figures.restart
    if restart is not None and restart.seconds < _LONG_RESTART_S:
        return
    if newest.log_bytes > max(_LONG_LOG * newest.full_snapshot_bytes, _MIN_BYTES):
        yield Finding(
            "attention",
            f"The log after the snapshots ({texts.size(newest.log_bytes)}) is larger than the "
            f"snapshots ({texts.size(newest.full_snapshot_bytes)}), so a restart must replay a lot; "
            "the options snapshot.* limit this.",
        )


def _skew(figures: Figures) -> Iterator[Finding]:
    for skew in figures.skew:
        for counts, noun, text in (
            (skew.keys, "keys", texts.count),
            (skew.change_bytes, "bytes of changes", texts.size),
        ):
            largest = largest_of(counts)
            if largest is not None and len(counts) > 1 and largest[1] >= _UNEVEN:
                group, factor = largest
                yield Finding(
                    "attention",
                    f"Key group {group} of {skew.operator} contains {factor:.1f} times the mean "
                    f"number of {noun} ({text(counts[group])}). One task always processes all "
                    "keys of a key group.",
                )


def _orphans(figures: Figures) -> Iterator[Finding]:
    orphans = sum(stored_kind.orphans for stored_kind in figures.stored)
    if orphans:
        size = texts.size(sum(stored_kind.orphan_bytes for stored_kind in figures.stored))
        yield Finding(
            "note",
            f"{texts.plural(orphans, 'object')} ({size}) older than an hour are not needed by any "
            "checkpoint; `statelog gc` deletes them.",
        )


def _runs(figures: Figures) -> Iterator[Finding]:
    epochs = [
        checkpoint.epoch for checkpoint in figures.checkpoints if checkpoint.epoch is not None
    ]
    runs = len(set(epochs))
    if runs > 1:
        yield Finding("note", f"The stored checkpoints were committed by {runs} runs of the query.")
    rewinds = [checkpoint.checkpoint_id for checkpoint in figures.checkpoints if checkpoint.rewound]
    if rewinds:
        yield Finding("note", f"Checkpoint {rewinds[0]} rewound the query to an older checkpoint.")


def _phases(figures: Figures) -> Iterator[Finding]:
    sums = defaultdict[str, float](float)
    for batch in figures.batches:
        for phase, ms in batch.milliseconds.items():
            sums[phase] += ms
    total = sum(sums.values())
    if total < _MIN_TOTAL_MS:
        return
    phase = max(sums, key=lambda name: sums[name])
    share = sums[phase] / total
    if phase != "run" and share >= _DOMINANT:
        yield Finding("note", f"The phase {phase} takes {texts.percent(share)} of the batch time.")
