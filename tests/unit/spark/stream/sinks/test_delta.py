"""The sink of Delta compares a micro-batch with the transactions of the table before its first write."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.spark.stream.sinks.support import Deliver, Frame, batch, driver_of

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import CheckpointError, FencedError
from statelog.spark.stream.sinks import delta
from statelog.spark.stream.sinks.delta import DeltaSink, Transaction
from statelog.spark.stream.sinks.simple import Target


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
    has_looked, sleeps = table.driver(), table.driver()
    has_looked(batch(0))
    has_looked(batch(1))
    table.driver()(batch(1, 7), "of the new driver")
    for number in (2, 9):
        has_looked(batch(number), "given up")
        with pytest.raises(FencedError, match=r"batch 1 of timeline 7, .* of timeline 0"):
            sleeps(batch(number), "given up")
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
