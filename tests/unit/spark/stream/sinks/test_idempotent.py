"""Records of `idempotent` name the history of a micro-batch, and are created one after the other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.spark.stream.sinks.support import Deliver, batch, driver_of

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, FencedError, UsageError
from statelog.spark import idempotent


class Target:
    """A target without transactions; `meanwhile` is called once while the next rows are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[tuple[int, str]] = []
        self.meanwhile: Callable[[], None] | None = None

    def write(self, frame: Any, batch_id: int) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.rows.append((batch_id, frame.text))

    def driver(self, record_first: bool = False) -> Deliver:
        return driver_of(idempotent(self.write, str(self.folder), record_first=record_first))

    def records(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "query").iterdir())


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


def test_a_batch_is_written_once_and_two_records_are_kept(target: Target) -> None:
    for number in range(12):
        for _ in range(2):
            target.driver()(batch(number))
    assert [(number, "row") for number in range(12)] == target.rows
    assert ["10", "11"] == target.records()


@pytest.mark.parametrize("record_first", [False, True])
def test_a_rewound_query_writes_its_batches_again(target: Target, record_first: bool) -> None:
    zombie = target.driver(record_first)
    for timeline, numbers in ((0, (0, 1, 2)), (8, (1, 2))):
        for number in numbers:
            target.driver(record_first)(batch(number, timeline), f"timeline {timeline}")
    for number in (1, 2, 3):
        with pytest.raises(FencedError, match="batch 2 of timeline 8"):
            zombie(batch(number), "given up")
    texts = [f"timeline {timeline}" for timeline in (0, 0, 0, 8, 8)]
    assert list(zip((0, 1, 2, 1, 2), texts, strict=True)) == target.rows


@pytest.mark.parametrize("wrong", [batch(1), batch(2, 0, "b"), batch(2, plan="other")])
def test_another_history_under_the_number_is_a_gap(target: Target, wrong: DeliveredBatch) -> None:
    target.driver()(batch(2, plan="planned"))
    with pytest.raises(CheckpointError) as caught:
        target.driver()(wrong, "wrong")
    assert "gap" == caught.value.reason
    assert [(2, "row")] == target.rows


@pytest.mark.parametrize(("late", "is_fenced"), [(batch(1, 8), True), (batch(1), False)])
def test_a_driver_meets_a_record_of_its_number(
    target: Target, late: DeliveredBatch, is_fenced: bool
) -> None:
    """Its rows are in the target: rows and record are two writes."""
    target.driver()(batch(0))
    target.meanwhile = lambda: target.driver()(late, "meanwhile")
    if is_fenced:
        with pytest.raises(
            FencedError, match=r"contains batch 1 \(a/8/1/\), .* a second driver is running"
        ):
            target.driver()(batch(1))
    else:
        target.driver()(batch(1))
    assert ["0", "1"] == target.records()


def test_a_record_of_another_program_is_rejected(target: Target) -> None:
    target.driver()(batch(0))
    (target.folder / "query" / "1").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read"):
        target.driver()(batch(1))
