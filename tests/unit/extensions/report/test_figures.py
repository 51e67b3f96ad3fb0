"""What stands out, and what does not."""

from dataclasses import replace

from statelog.extensions.report.figures import (
    CheckpointFigures,
    Figures,
    StoredObjects,
    findings_of,
)
from statelog.extensions.report.restart import Restart, Speeds
from statelog.extensions.report.skew import KeyGroups
from statelog.metrics.table import BatchFigures

MIB = 1024 * 1024


def checkpoint(number: int, **values: object) -> CheckpointFigures:
    facts: dict[str, object] = {
        "checkpoint_id": number, "state": "retained", "epoch": 1, "created_at_ms": 1000 * number,
        "log_bytes": MIB, "full_snapshot_bytes": MIB,
        "figures": BatchFigures(milliseconds={"plan": 100, "run": 900, "deliver": 300}),
        "task_retries": 0, "put_retries": 0,
    }  # fmt: skip
    return CheckpointFigures(**(facts | values))  # type: ignore[arg-type]


SOUND = Figures(
    location="/job", made_at_ms=0, version="1", newest_id=2,
    checkpoints=(checkpoint(1), checkpoint(2)),
    skew=(KeyGroups(operator="op", keys=(5, 5, 6, 5), change_bytes=(9, 9, 9, 9)),),
    stored=(StoredObjects(kind="log", objects=3, size_bytes=9),),
)  # fmt: skip


def restart(seconds: float) -> Restart:
    return Restart(
        checkpoint_id=2, tasks=1, parts=(), change_sets=9, driver_requests=1, task_requests=1,
        slowest_requests=1, slowest_bytes=9, speeds=Speeds(), seconds=seconds,
    )  # fmt: skip


def findings_with(**values: object) -> list[tuple[str, str]]:
    """Return level and text of what stands out in a sound job with other values."""
    figures = replace(SOUND, **values)  # type: ignore[arg-type]
    return [(finding.level, finding.text) for finding in findings_of(figures)]


def test_a_sound_job_has_no_findings() -> None:
    assert [] == findings_with()


def test_damage_is_the_first() -> None:
    damaged = checkpoint(1, state="damaged", problem="it is cut", created_at_ms=None, epoch=None)
    retried = checkpoint(2, task_retries=3, epoch=2)
    levels = findings_with(checkpoints=(damaged, retried, checkpoint(3)))
    assert ["damage", "attention", "note"] == [level for level, _ in levels]
    assert "it is cut" in levels[0][1]
    assert levels[1][1].startswith("Tasks were repeated 3 times")
    assert "2 runs" in levels[2][1]


def test_a_newer_format_is_not_called_damage() -> None:
    newer = checkpoint(1, state="incompatible", problem="upgrade statelog", epoch=None)
    assert [("attention", "upgrade statelog")] == findings_with(checkpoints=(newer, checkpoint(2)))


def test_a_long_log_is_named() -> None:
    long = checkpoint(2, log_bytes=3 * MIB)
    ((level, text),) = findings_with(checkpoints=(checkpoint(1), long))
    assert "attention" == level and "3.0 MiB" in text and "snapshot.*" in text
    assert findings_with(checkpoints=(long,), restart=restart(60.0))
    assert [] == findings_with(checkpoints=(long,), restart=restart(2.4))
    small = checkpoint(2, log_bytes=9, full_snapshot_bytes=0)
    assert [] == findings_with(checkpoints=(small,))


def test_an_uneven_key_group_is_named() -> None:
    skew = (KeyGroups(operator="op", keys=(1, 40, 1, 1), change_bytes=(1, 1, 1, 1)),)
    ((level, text),) = findings_with(skew=skew)
    assert "attention" == level
    assert text.startswith("Key group 1 of op contains 3.7 times the mean number of keys (40).")


def test_orphans_name_the_command_that_deletes_them() -> None:
    stored = (StoredObjects(kind="log", objects=3, size_bytes=9, orphans=2, orphan_bytes=2048),)
    ((level, text),) = findings_with(stored=stored)
    assert "note" == level and "2 objects (2.0 KiB)" in text and "statelog gc" in text


def test_a_slow_sink_is_named_and_slow_tasks_are_not() -> None:
    slow = checkpoint(2, figures=BatchFigures(milliseconds={"run": 300, "deliver": 3000}))
    ((level, text),) = findings_with(checkpoints=(slow,))
    assert ("note", "The phase deliver takes 91 % of the batch time.") == (level, text)
    slow_tasks = checkpoint(2, figures=BatchFigures(milliseconds={"run": 9000}))
    assert [] == findings_with(checkpoints=(slow_tasks,))


def test_a_rewind_and_repeated_puts_are_named() -> None:
    rewound = checkpoint(2, rewound=True, put_retries=1)
    texts = [text for _, text in findings_with(checkpoints=(rewound,))]
    assert any("rewound the query" in text for text in texts)
    repeated = "Puts of claims and commits were repeated 1 time "
    assert any(text.startswith(repeated) for text in texts)
