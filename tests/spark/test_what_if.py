"""What-if: the same code differs in nothing, and changed code in just what it changes."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from examples import fraud
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.spark.checkpoint_files import InTime
from tests.support.spark.processors import TOTALS, Totals, totals_job, totals_of
from tests.support.spark.streams import BatchSource, Job, run_to_end

import statelog
from statelog.errors import CheckpointError, UsageError
from statelog.spark import transform_with_state, what_if

cloudpickle.register_pickle_by_value(fraud)

BATCHES = [
    [(1, 10), (2, 20)],
    [(1, 1), (3, 30)],
    [(2, 2)],
    [(1, 5), (4, 4)],
    [(4, 1), (5, 100)],
    [(1, 7)],
]
MODES: dict[str, dict[str, Any]] = {
    "staged": {},
    "direct, event time": {"delivery": "direct", "timeMode": "EventTime"},
    "processing time": {"timeMode": "ProcessingTime"},
}


class Capped(Totals):
    """Takes no more than 50 of an amount: the change."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        capped = [Row(amount=min(row.amount, 50)) for row in rows]
        yield from super().handleInputRows(key, capped, timerValues)


def job_of(spark: SparkSession, folder: Path, options: dict[str, Any]) -> Job:
    kind = InTime if options.get("timeMode") == "EventTime" else BatchSource
    settings = {"retainedCheckpoints": 3, **options}
    return totals_job(spark, folder, kind=kind, **settings)


def stream_of(job: Job, processor: Totals) -> DataFrame:
    options = {name: value for name, value in job.options.items() if name != "delivery"}
    return transform_with_state(job.source.frame().groupBy("key"), processor, TOTALS, **options)


def run_batches(job: Job, batches: list[list[tuple[int, int]]]) -> None:
    job.source.add_all(batches)
    job.run()


def fork_of(job: Job, name: str = "next") -> statelog.Fork:
    return statelog.fork(job.state, job.folder / name / "statelog")


@pytest.mark.parametrize("options", MODES.values(), ids=MODES)
def test_the_same_code_differs_in_nothing(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any]
) -> None:
    job = job_of(spark, tmp_path, options)
    run_batches(job, BATCHES[:2])
    fork = fork_of(job)
    run_batches(job, BATCHES[2:])
    seen: list[tuple[int, int]] = []
    comparison = what_if(
        fork,
        stream_of(job, Totals()),
        current=stream_of(job, Totals()),
        on_batch=lambda batch, last: seen.append((batch, last)),
    )
    assert (comparison.is_same, comparison.reproducible, comparison.not_compared) == (
        True,
        True,
        (),
    )
    assert sum(batch.input_rows for batch in comparison.batches) == sum(map(len, BATCHES[2:]))
    assert seen == [
        (batch.batch_id, comparison.batches[-1].batch_id) for batch in comparison.batches
    ]
    assert "0 added, 0 removed" in str(comparison)
    tags = {tag.kind.value for tag in statelog.tags(job.state)}
    assert tags == {"fork"}  # of the fork itself; what kept the compared checkpoint is gone
    assert not list(tmp_path.glob("next/statelog-current*/*/*"))


def test_changed_code_differs_where_it_changes(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of(spark, tmp_path, {})
    run_batches(job, BATCHES[:2])
    fork = fork_of(job)
    run_batches(job, BATCHES[2:5])
    until = statelog.open(job.state).checkpoints()[-1].checkpoint_id
    run_batches(job, BATCHES[5:])
    comparison = what_if(fork, stream_of(job, Capped()), until=until)
    assert [(4, "removed", 5, 100), (4, "added", 5, 50)] == [
        (row["batch_id"], row["change"], row["key"], row["total"])
        for row in comparison.outputs.to_pylist()
    ]
    (table,) = comparison.state.values()
    (row,) = table.to_pylist()
    assert ("update", 5, 100, 50) == (
        row["change"],
        row["key.key"],
        row["before.total"]["total"],
        row["after.total"]["total"],
    )
    assert not comparison.is_same
    assert "keys whose state differs in transform_with_state: 1\n" in str(comparison)
    with pytest.raises(CheckpointError, match="has already run on the fork"):
        what_if(fork, stream_of(job, Capped()), until=until)
    # Switch: the changed query goes on from the fork, with the rows that follow.
    assert fork.query is not None
    successor = Job(job.source, tmp_path / "successor", ["key"], Capped(), TOTALS)
    successor.run(checkpointLocation=fork.query.checkpoint_location, stateLocation=fork.location)
    assert totals_of(BATCHES)[5:] == successor.take_in_order()


def test_what_cannot_be_compared_is_said(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of(spark, tmp_path, {"delivery": "direct"})
    run_batches(job, BATCHES[:2])
    fork = fork_of(job)
    with pytest.raises(CheckpointError, match="a checkpoint after the forked batch"):
        what_if(fork, stream_of(job, Totals()))
    with pytest.raises(UsageError, match="transform_with_state"):
        what_if(fork, spark.range(1))
    run_batches(job, BATCHES[2:4])
    comparison = what_if(fork, stream_of(job, Totals()))
    assert comparison.not_compared == tuple(batch.batch_id for batch in comparison.batches)
    assert comparison.is_same  # the state was compared


class WrongRule(fraud.FraudRule):
    """The fraud rule with a planted bug: a payment of the limit itself passes as tiny."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row.at):
            at = int(row.at.timestamp() * 1000)
            armed = self.armed.get()
            if armed is not None and row.amount < fraud.LARGE and at <= armed[0]:
                yield Row(account=key[0], at=row.at, amount=row.amount)
            self.disarm()
            if row.amount < fraud.TINY:
                self.armed.update((at + fraud.MINUTE_MS,))
                self.handle.registerTimer(at + fraud.MINUTE_MS)


def payments(folder: Path, number: int, rows: list[tuple[str, int, float]]) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    lines = [
        json.dumps(
            {
                "account": account,
                "at": (begin + timedelta(seconds=at)).isoformat(),
                "amount": amount,
            }
        )
        for account, at, amount in rows
    ]
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{number:03}.json"
    hidden.write_text("\n".join(lines))
    hidden.rename(folder / f"{number:03}.json")
    time.sleep(0.02)  # Spark takes files in the order of their times


def test_the_planted_bug_of_the_fraud_rule_is_found(spark: SparkSession, tmp_path: Path) -> None:
    folder, place = tmp_path / "in", tmp_path / "job"

    def alerts(rule: fraud.FraudRule) -> DataFrame:
        reader = spark.readStream.schema(fraud.PAYMENTS).option("maxFilesPerTrigger", 1)
        frame = reader.json(str(folder)).withWatermark("at", "30 seconds")
        return transform_with_state(
            frame.groupBy("account"), rule, fraud.ALERTS, "Append", "EventTime"
        )

    def run_rule() -> None:
        run_to_end(alerts(fraud.FraudRule()), place)

    payments(folder, 0, [("anna", 0, 0.5), ("bob", 1, 20.0)])
    run_rule()
    fork = statelog.fork(place / "statelog", tmp_path / "next" / "statelog")
    payments(folder, 1, [("anna", 5, 900.0), ("bob", 6, 0.2)])
    payments(folder, 2, [("bob", 20, 30.0), ("anna", 200, 10.0)])
    run_rule()
    comparison = what_if(fork, alerts(WrongRule()), current=alerts(fraud.FraudRule()))
    print(comparison)
    assert comparison.reproducible
    assert {("removed", "anna", 900.0), ("added", "bob", 30.0)} == {
        (row["change"], row["account"], row["amount"]) for row in comparison.outputs.to_pylist()
    }
