"""Sinks write each micro-batch once: Delta by its transactions, `idempotent` by records of its own."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, FencedError, UsageError
from statelog.spark import idempotent
from statelog.spark.query.delivery import set_batch
from statelog.spark.stream.sinks import delta
from statelog.spark.stream.sinks.delta import DeltaSink, Transaction
from statelog.spark.stream.sinks.simple import Target

Deliver = Callable[..., None]


class Frame:
    """A frame that has the properties of its query, and nothing else."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sparkSession = self.sparkContext = self
        self._properties = {"sql.streaming.queryId": "query"}

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get(key)

    def setLocalProperty(self, key: str, value: str) -> None:
        self._properties[key] = value


def driver_of(sink: Callable[[Any, int], None]) -> Deliver:
    """Return a driver that delivers frames of its micro-batches to a sink."""

    def deliver(batch: DeliveredBatch, text: str = "row") -> None:
        frame: Any = Frame(text)
        set_batch(frame, batch)
        sink(frame, batch.batch_id)

    return deliver


def batch(number: int, timeline: int = 0, location: str = "a", plan: str = "") -> DeliveredBatch:
    return DeliveredBatch(location, timeline, number, plan)


class DeltaTable:
    """A table in memory that treats transactions as Delta does."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []
        self.transactions: dict[str, Transaction] = {}
        self.keeps_metadata = True

    def driver(self, **options: str) -> Deliver:
        target = Target("delta").with_option("path", "table")
        for key, value in options.items():
            target = target.with_option(key, value)
        return driver_of(DeltaSink(target))

    def append(self, frame: Frame, target: Target, options: Mapping[str, Any]) -> None:
        application, version = options["txnAppId"], options["txnVersion"]
        known = self.transactions.get(application)
        if known is not None and known.number >= version:
            return
        metadata = options["userMetadata"] if self.keeps_metadata else ""
        self.transactions[application] = Transaction(application, version, metadata)
        self.rows.append((version & 0xFFFFFFFF, frame.text))

    def read(self, _: object, folder: str) -> Sequence[Transaction]:
        assert "table" == folder
        return tuple(self.transactions.values())


@pytest.fixture(params=[True, False], ids=["with metadata", "without"])
def table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DeltaTable:
    table = DeltaTable()
    table.keeps_metadata = request.param
    monkeypatch.setattr(delta, "append", table.append)
    monkeypatch.setattr(delta, "transactions", table.read)
    return table


def test_a_batch_is_written_once_over_restarts(table: DeltaTable) -> None:
    for number in range(3):
        table.driver()(batch(number))
        table.driver()(batch(number), "again")
    assert [(number, "row") for number in range(3)] == table.rows


@pytest.mark.parametrize(
    "wrong", [batch(1), batch(2), batch(3, 0, "b"), batch(2, 0, "b"), batch(3, 0, "a", "other")]
)
def test_an_earlier_batch_or_other_rows_are_rejected(
    table: DeltaTable, wrong: DeliveredBatch
) -> None:
    deliver = table.driver()
    for number in range(4):
        deliver(batch(number, plan="planned"))
    if wrong.plan and not table.keeps_metadata:
        table.driver()(wrong, "a checkpoint of Delta does not have the plan")
    else:
        with pytest.raises(CheckpointError) as caught:
            table.driver()(wrong, "wrong")
        assert ("gap", wrong.batch_id) == (caught.value.reason, caught.value.batch_id)
    assert 4 == len(table.rows)


def test_a_rewound_query_writes_its_batches_again(table: DeltaTable) -> None:
    expected = []
    for timeline, numbers in ((0, range(4)), (7, range(2, 4)), (20, range(3, 5))):
        deliver = table.driver()
        for number in numbers:
            deliver(batch(number, timeline), f"timeline {timeline}")
            expected.append((number, f"timeline {timeline}"))
        table.driver()(batch(numbers[-1], timeline), "again")
    assert expected == table.rows


def test_a_driver_that_slept_during_a_rewind_writes_nothing(table: DeltaTable) -> None:
    # Both drivers sleep through the rewind; only one has read the table's history before it.
    early, late = table.driver(), table.driver()
    early(batch(0))
    early(batch(1))
    table.driver()(batch(1, 7), "of the new driver")
    for number in (2, 9):
        early(batch(number), "given up")
        with pytest.raises(FencedError, match=r"batch 1 of timeline 7, .* of timeline 0"):
            late(batch(number), "given up")
    assert [(0, "row"), (1, "row"), (1, "of the new driver")] == table.rows


def test_a_new_location_continues_unless_delta_would_skip_it(table: DeltaTable) -> None:
    table.driver()(batch(3, 5))
    for _ in range(2):
        table.driver()(batch(4, 0, "b"))
    assert [(3, "row"), (4, "row")] == table.rows
    table.driver(txnAppId="of the user")(batch(4, 5))
    error = CheckpointError if table.keeps_metadata else FencedError
    with pytest.raises(error):
        table.driver(txnAppId="of the user")(batch(5, 0, "b"))
    assert 3 == len(table.rows)


def test_other_queries_and_the_users_texts_do_not_matter(table: DeltaTable) -> None:
    table.driver(TxnAppId="query-2/a")(batch(9))
    table.driver(userMetadata="of the user")(batch(2))
    table.driver()(batch(2), "again")
    table.driver()(batch(3))
    assert [(9, "row"), (2, "row"), (3, "row")] == table.rows
    assert {"query-2/a", "query/a"} == set(table.transactions)


class PlainTarget:
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
def target(tmp_path: Path) -> PlainTarget:
    return PlainTarget(tmp_path)


def test_a_batch_is_written_once_and_two_records_are_kept(target: PlainTarget) -> None:
    for number in range(12):
        for _ in range(2):
            target.driver()(batch(number))
    assert [(number, "row") for number in range(12)] == target.rows
    assert ["10", "11"] == target.records()


@pytest.mark.parametrize("record_first", [False, True])
def test_a_rewound_query_calls_the_function_again(target: PlainTarget, record_first: bool) -> None:
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
def test_another_history_under_the_number_is_a_gap(
    target: PlainTarget, wrong: DeliveredBatch
) -> None:
    target.driver()(batch(2, plan="planned"))
    with pytest.raises(CheckpointError) as caught:
        target.driver()(wrong, "wrong")
    assert "gap" == caught.value.reason
    assert [(2, "row")] == target.rows


@pytest.mark.parametrize(("late", "is_fenced"), [(batch(1, 8), True), (batch(1), False)])
def test_a_driver_meets_a_record_of_its_number(
    target: PlainTarget, late: DeliveredBatch, is_fenced: bool
) -> None:
    """Its rows are in the target: rows and record are two writes."""
    target.driver()(batch(0))
    target.meanwhile = lambda: target.driver()(late, "meanwhile")
    message = r"contains batch 1 \(a/8/1/\), .* a second driver"
    with pytest.raises(FencedError, match=message) if is_fenced else nullcontext():
        target.driver()(batch(1))
    assert ["0", "1"] == target.records()


def test_a_record_of_another_program_is_rejected(target: PlainTarget) -> None:
    target.driver()(batch(0))
    (target.folder / "query" / "1").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read"):
        target.driver()(batch(1))
