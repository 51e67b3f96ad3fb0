"""What stands out, and what does not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from statelog.extensions.report import texts
from statelog.extensions.report.bill import PRICES, bill_of
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


NEWER = checkpoint(1, state="incompatible", problem="upgrade statelog", epoch=None)
LONG = checkpoint(2, log_bytes=3 * MIB)
SLOW_SINK = checkpoint(2, figures=BatchFigures(milliseconds={"run": 300, "deliver": 3000}))
UNEVEN = KeyGroups(operator="op", keys=(1, 40, 1, 1), change_bytes=(1, 1, 1, 1))
ORPHANS = StoredObjects(kind="log", objects=3, size_bytes=9, orphans=2, orphan_bytes=2048)


@pytest.mark.parametrize(
    ("values", "level", "words"),
    [
        ({"checkpoints": (NEWER, checkpoint(2))}, "attention", ["upgrade statelog"]),
        ({"checkpoints": (checkpoint(1), LONG)}, "attention", ["3.0 MiB", "snapshot.*"]),
        ({"checkpoints": (LONG,), "restart": restart(60.0)}, "attention", ["3.0 MiB"]),
        ({"skew": (UNEVEN,)}, "attention",
         ["Key group 1 of op contains 3.7 times the mean number of keys (40)."]),
        ({"stored": (ORPHANS,)}, "note", ["2 objects (2.0 KiB)", "statelog gc"]),
        ({"checkpoints": (SLOW_SINK,)}, "note", ["The phase deliver takes 91 % of the batch time."]),
    ],
    ids=["newer format", "long log", "slow restart", "uneven keys", "orphans", "slow sink"],
)  # fmt: skip
def test_what_stands_out_is_named(values: dict[str, Any], level: str, words: list[str]) -> None:
    ((found, text),) = findings_with(**values)
    assert level == found
    assert [] == [word for word in words if word not in text]


@pytest.mark.parametrize(
    "values",
    [
        {"checkpoints": (LONG,), "restart": restart(2.4)},
        {"checkpoints": (checkpoint(2, log_bytes=9, full_snapshot_bytes=0),)},
        {"checkpoints": (checkpoint(2, figures=BatchFigures(milliseconds={"run": 9000})),)},
    ],
    ids=["fast restart", "small log", "slow tasks"],
)
def test_what_does_no_harm_is_not_named(values: dict[str, Any]) -> None:
    assert [] == findings_with(**values)


def test_a_rewind_and_repeated_puts_are_named() -> None:
    rewound = checkpoint(2, rewound=True, put_retries=1)
    texts = " ".join(text for _, text in findings_with(checkpoints=(rewound,)))
    assert "rewound the query" in texts
    assert "Puts of claims and commits were repeated 1 time " in texts


S3 = PRICES["s3"]


def test_a_micro_batch_a_minute() -> None:
    stored_bytes = 50_000_000_000
    bill = bill_of(puts_per_batch=2, seconds_per_batch=60.0, stored_bytes=stored_bytes, prices=S3)
    assert 43_200 == bill.batches_per_month
    # 86,400 puts and 43,200 listings at 0.005 for each 1,000, and no get; 50 GB at 0.023.
    assert bill.request_dollars == pytest.approx(0.648)
    assert bill.storage_dollars == pytest.approx(1.15)
    assert bill.dollars == pytest.approx(1.798)


@pytest.mark.parametrize(("seconds", "listings"), [(1.0, 0.05), (30.0, 0.5), (3600.0, 1.0)])
def test_many_commits_share_a_listing(seconds: float, listings: float) -> None:
    bill = bill_of(puts_per_batch=1, seconds_per_batch=seconds, stored_bytes=0, prices=S3)
    assert listings == bill.lists_per_batch
    batches = 30 * 24 * 3600 / seconds
    assert bill.request_dollars == pytest.approx(batches * (1 + listings) * 0.005 / 1000)


def test_without_a_rate_there_is_no_bill_of_requests() -> None:
    bill = bill_of(puts_per_batch=1, seconds_per_batch=None, stored_bytes=1, prices=S3)
    assert (None, None) == (bill.request_dollars, bill.dollars)


def test_stated_prices_replace_those_of_the_list() -> None:
    changed = PRICES["azure"].changed(gets_per_1000=0.5)
    assert (0.5, 0.005, 0.018) == (changed.gets_per_1000, changed.puts_per_1000, changed.gb_month)
    assert "changed" in changed.title and "stated" in changed.source
    assert PRICES["azure"] is PRICES["azure"].changed()


def test_each_list_names_its_source_and_its_day() -> None:
    for name, prices in PRICES.items():
        assert name == prices.name
        assert prices.source and prices.noted_on >= "2026-11-22"
        assert 0 < prices.gets_per_1000 < prices.puts_per_1000 < prices.gb_month


MIB, TIB = 1024**2, 1024**4
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
COUNTS = {None: "–", 0: "0", 12_345: "12,345", 1.25: "1.2", 150.4: "150", -2.5: "-2.5"}
SIZES = {
    0: "0 B", 1023: "1,023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", MIB - 1: "1.0 MiB",
    5 * TIB: "5.0 TiB", 3000 * TIB: "3,000.0 TiB",
}  # fmt: skip
DURATIONS = {
    0: "0 ms", 999.4: "999 ms", 999.6: "1.0 s", 59_900: "59.9 s", 59_960: "1 min 0 s",
    125_000: "2 min 5 s", 3 * HOUR_MS + 4 * MINUTE_MS: "3 h 4 min", 50 * HOUR_MS: "2 d 2 h",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text_of", "expected"),
    [(texts.count, COUNTS), (texts.size, SIZES), (texts.duration, DURATIONS)],
    ids=["counts", "sizes", "durations"],
)
def test_numbers_are_rounded_and_have_their_unit(
    text_of: Callable[[Any], str], expected: dict[Any, str]
) -> None:
    assert expected == {value: text_of(value) for value in expected}


def test_shares_and_numbers_of_things() -> None:
    assert "71 %" == texts.percent(0.712)
    assert ["1 object", "2,000 objects"] == [texts.plural(count, "object") for count in (1, 2000)]
