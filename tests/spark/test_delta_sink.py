"""The transactions of a Delta table are read from its log, by Spark and without Delta's package."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from statelog.spark.stream.sinks.delta import Transaction, transactions


def newest(spark: SparkSession, table: Path) -> list[tuple[str, int, str]]:
    return sorted(
        (transaction.application, transaction.number, transaction.metadata)
        for transaction in transactions(spark, str(table))
    )


def test_tables_of_another_writer_are_read(spark, tmp_path):
    deltalake = pytest.importorskip("deltalake")
    rows = pa.table({"number": [1]})

    for application, version in (("a", 4), ("b", 1), ("a", 5 << 32)):
        properties = deltalake.CommitProperties(
            custom_metadata={"userMetadata": f"{application}/{version}"},
            app_transactions=[deltalake.Transaction(application, version)],
        )
        deltalake.write_deltalake(str(tmp_path), rows, mode="append", commit_properties=properties)
    assert [("a", 5 << 32, f"a/{5 << 32}"), ("b", 1, "b/1")] == newest(spark, tmp_path)
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    assert [("a", 5 << 32, f"a/{5 << 32}"), ("b", 1, "b/1")] == newest(spark, tmp_path), (
        "the commits have the texts"
    )
    for commit in (tmp_path / "_delta_log").glob("*.json"):
        commit.unlink()
    assert [("a", 5 << 32, ""), ("b", 1, "")] == newest(spark, tmp_path), (
        "a checkpoint has no texts"
    )


def test_checkpoints_of_every_kind_are_read(spark, tmp_path):
    """Classic, in parts, and of version 2; one whose parts are missing does not count."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "_last_checkpoint").write_text("{}")

    def write(name: str, *actions: Any) -> None:
        (log / name).write_text("".join(json.dumps(action) + "\n" for action in actions))

    def txn(application: str, version: int) -> dict[str, Any]:
        return {"txn": {"appId": application, "version": version, "lastUpdated": 1}}

    def parquet(name: str, *actions: Any) -> None:
        rows = [{"txn": None, "add": None, **action} for action in actions]
        kind = pa.struct([("appId", pa.string()), ("version", pa.int64())])
        columns = {"txn": pa.array([row["txn"] for row in rows], kind)}
        columns["add"] = pa.array([row["add"] for row in rows], pa.struct([("path", pa.string())]))
        pq.write_table(pa.table(columns), log / name)

    def number(version: int) -> str:
        return f"{version:020}"

    write(f"{number(0)}.json", {"commitInfo": {"userMetadata": "x"}}, txn("a", 0))
    write(f"{number(1)}.json", {"add": {"path": '{"txn":{}}'}}, txn("b", 5), txn("c", 1))
    assert [("a", 0, "x"), ("b", 5, ""), ("c", 1, "")] == newest(spark, tmp_path)
    parquet(f"{number(1)}.checkpoint.parquet", {"txn": {"appId": "d", "version": 4}})
    assert [("d", 4, "")] == newest(spark, tmp_path)
    for part, application in ((1, "e"), (2, "f")):
        name = f"{number(2)}.checkpoint.{part:010}.{2:010}.parquet"
        parquet(name, {"txn": {"appId": application, "version": 1}}, {"add": {"path": "p"}})
        if part == 1:
            assert [("d", 4, "")] == newest(spark, tmp_path)
    assert [("e", 1, ""), ("f", 1, "")] == newest(spark, tmp_path)
    uuid = "80a083e8-7026-4e79-81be-64bd76c43a11"
    write(f"{number(3)}.checkpoint.{uuid}.json", {"sidecar": {}}, txn("g", 2))
    write(f"{number(4)}.json", {"commitInfo": {}}, txn("g", 3))
    write(f"{number(3)}.{number(4)}.compacted.json", txn("h", 9))
    assert [("g", 3, "")] == newest(spark, tmp_path)
    assert () == transactions(spark, str(tmp_path / "missing"))
    assert Transaction("a", 1) == Transaction("a", 1, "")
