"""Random courses of a query whose history changes: each row once, or a refusal by name."""

from __future__ import annotations

import functools
import os
import sqlite3
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from tests import evidence
from tests.histories.courses import Target, run_course
from tests.kafka_stand_in import Broker, Consumer, Producer

from statelog.core.delivered_batch import DeliveredBatch
from statelog.model import CheckpointPosition, CompletedCheckpoint
from statelog.spark import DatabaseSink, KafkaSink
from statelog.spark.stream.sinks import kafka

FEW = 12
MANY = int(os.environ.get("STATELOG_HISTORY_COURSES", "300"))


def sqlite_target(folder: Path) -> Target:
    path = folder / "rows.db"
    with sqlite3.connect(path) as database:
        database.execute("create table rows (key text, value text)")
    connect = functools.partial(sqlite3.connect, path, check_same_thread=False)

    def stored() -> list[str]:
        with sqlite3.connect(path) as reader:
            return [key for (key,) in reader.execute("select key from rows")]

    return Target(lambda: DatabaseSink(connect, "rows"), stored)


def iceberg_target(folder: Path) -> Target:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    from statelog.spark.stream.sinks.iceberg import IcebergSink

    properties = {
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    catalog = load_catalog("courses", **properties)
    catalog.create_namespace("rows")

    def stored() -> list[str]:
        try:
            table = catalog.load_table("rows.rows")
        except NoSuchTableError:
            return []
        return table.scan(selected_fields=("key",)).to_arrow().column("key").to_pylist()

    return Target(
        lambda: IcebergSink("rows.rows", catalog="courses", properties=properties), stored
    )


def kafka_target() -> Target:
    broker = Broker.newest = Broker()

    def stored() -> list[str]:
        return [key for key, _ in broker.records]

    return Target(lambda: KafkaSink("rows", {"bootstrap.servers": "broker"}), stored)


def run(seed: int, folder: Path, *, iceberg: bool) -> Counter[str]:
    folder.mkdir()
    targets = {"SQLite": sqlite_target(folder), "Kafka": kafka_target()}
    if iceberg:
        targets["Iceberg"] = iceberg_target(folder)
    with mock.patch.multiple(kafka, Producer=Producer, Consumer=Consumer):
        return run_course(seed, folder, targets)


@pytest.mark.parametrize("seed", range(FEW))
def test_each_row_is_written_once_or_refused(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path / "course", iceberg=seed % 4 == 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_courses(tmp_path: Path) -> None:
    totals: Counter[str] = Counter()
    with evidence.campaign("histories", seeds=range(FEW, FEW + MANY)) as record:
        for seed in range(FEW, FEW + MANY):
            totals += run(seed, tmp_path / f"course {seed}", iceberg=seed % 3 == 0)
        record.counts.update(totals)
    for needed in ("rewound", "forked", "asleep", "woken and refused", "restored both"):
        assert totals[needed], f"no course has: {needed}"


def number_alone(self: DeliveredBatch, last: DeliveredBatch | None, *, target: str) -> bool:
    """A mutant: this number or a later one is taken for written."""
    return last is not None and last.batch_id >= self.batch_id


def every_position(self: CompletedCheckpoint, position: CheckpointPosition) -> bool:
    """A mutant: a number that is not higher is taken for a part of the history."""
    return position.checkpoint_id <= self.checkpoint_id


@pytest.mark.parametrize(
    ("kind", "name", "mutant"),
    [
        (DeliveredBatch, "is_written", number_alone),
        (CompletedCheckpoint, "continues", every_position),
    ],
)
def test_the_courses_find_a_number_without_its_history(
    kind: type, name: str, mutant: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, mutant)
    with pytest.raises(AssertionError):
        for seed in range(40):
            run(seed, tmp_path / f"course {seed}", iceberg=False)
