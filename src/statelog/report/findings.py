"""What stands out in the figures: sentences that say what was found and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from statelog.report import texts
from statelog.report.skew import spread_of

if TYPE_CHECKING:
    from statelog.report.figures import Figures

_UNEVEN: Final = 3.0
"""A key group with so many times the mean is named."""
_LONG_LOG: Final = 2.0
"""A log so many times as large as the snapshots is named."""
_MIN_BYTES: Final = 1024 * 1024
_LONG_RESTART_S: Final = 10.0
"""A restart that takes less is not named, however long its log is."""
_DOMINANT: Final = 0.6
_MIN_TOTAL_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One thing that stands out.

    Args:
        level: "damage", "attention" or "note".
        text: What was found, and what to do.
    """

    level: str
    text: str


def findings_of(figures: Figures) -> tuple[Finding, ...]:
    """Return what stands out, the worst first."""
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
            f"Tasks were repeated {texts.plural(tasks, 'time')} after a failed attempt; the log of "
            "the executors names the cause.",
        )
    if puts:
        yield Finding(
            "attention",
            f"Puts of claims and commits were repeated {texts.plural(puts, 'time')} because the "
            "store answered that the name is taken.",
        )
    repeated = sum(checkpoint.upload_retries or 0 for checkpoint in figures.checkpoints)
    if repeated:
        uploads = sum(checkpoint.uploads or 0 for checkpoint in figures.checkpoints)
        yield Finding(
            "note",
            f"Uploads of tasks were repeated {texts.plural(repeated, 'time')}, of "
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
            f"snapshots ({texts.size(newest.full_snapshot_bytes)}), so a restart replays much; "
            "the options snapshot.* bound it.",
        )


def _skew(figures: Figures) -> Iterator[Finding]:
    for skew in figures.skew:
        for counts, noun, largest in (
            (skew.keys, "keys", texts.count),
            (skew.change_bytes, "bytes of changes", texts.size),
        ):
            spread = spread_of(counts)
            if spread is not None and len(counts) > 1 and spread.factor >= _UNEVEN:
                yield Finding(
                    "attention",
                    f"Key group {spread.largest_group} of {skew.operator} has "
                    f"{texts.times(spread.factor)} the mean number of {noun} "
                    f"({largest(spread.largest)}). The keys of one key group are always processed "
                    "by one task.",
                )


def _orphans(figures: Figures) -> Iterator[Finding]:
    orphans = sum(stored_kind.orphans for stored_kind in figures.stored)
    if orphans:
        size = texts.size(sum(stored_kind.orphan_bytes for stored_kind in figures.stored))
        yield Finding(
            "note",
            f"{texts.plural(orphans, 'object')} ({size}) older than an hour are needed by no "
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
        yield Finding("note", f"Checkpoint {rewinds[0]} went back to an older one.")


def _phases(figures: Figures) -> Iterator[Finding]:
    sums: dict[str, int] = {}
    for checkpoint in figures.checkpoints:
        for phase, ms in checkpoint.durations_ms.items():
            sums[phase] = sums.get(phase, 0) + ms
    total = sum(sums.values())
    if total < _MIN_TOTAL_MS:
        return
    phase = max(sums, key=lambda name: sums[name])
    share = sums[phase] / total
    if phase != "run" and share >= _DOMINANT:
        yield Finding(
            "note", f"{texts.percent(share)} of the time of micro-batches is the phase {phase}."
        )
