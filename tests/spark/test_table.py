"""Keyed tables: a stream and batches written to `format("statelog_table")`."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from tests.spark.streams import BatchSource, wait
from tests.unit.state.reader.histories import History

import pyspark_statelog
import pyspark_statelog_table
import statelog
from statelog.checkpoint.history import Entries
from statelog.spark.rows.types import arrow_schema
from statelog.spark.table.commit import TableBatch, commit_batch, writers_of
from statelog.spark.table.options import TableColumns, TableOptions
from statelog.spark.table.parts import write_part
from statelog.store import open_store

COLUMNS = "shop string, n bigint, amount double, note struct<text:string>, gone boolean, at bigint"


def start(source: BatchSource, table: Path, checkpoint: Path, **options: object) -> Any:
    writer = source.frame().writeStream.format("statelog_table").outputMode("append")
    writer = writer.option("key", "n,shop").option("deleteColumn", "gone")
    for name, value in {"sequenceBy": "at", "maxParallelism": 8, **options}.items():
        writer = writer.option(name, str(value))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return writer.start(str(table))


def rows_of(rng: random.Random, batch: int, count: int = 40) -> list[tuple[Any, ...]]:
    rows = []
    for number in range(count):
        key = rng.choice(["a", "b", None]), rng.randrange(9)
        value = rng.random() if rng.random() < 0.9 else None
        gone = rng.choice([True, False, False, None])
        rows.append((*key, value, (f"{batch}.{number}",), gone, batch * 1000 + number))
    rng.shuffle(rows)
    return rows


def apply(model: dict[Any, Any], rows: list[tuple[Any, ...]]) -> None:
    for shop, n, amount, note, gone, at in sorted(rows, key=lambda row: row[5]):
        model.pop((n, shop), None)
        if not gone:
            model[n, shop] = {"amount": amount, "note": {"text": note[0]}, "at": at}


def table_of(state: statelog.LocationState, checkpoint: int | None = None) -> dict[Any, Any]:
    rows = state.table("row", checkpoint).to_pylist()
    return {
        (row["key.n"], row["key.shop"]): {
            name: row[f"value.{name}"] for name in ("amount", "note", "at")
        }
        for row in rows
    }


def as_source(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    names = ["shop", "n", "amount", "note", "gone", "at"]
    return [{**dict(zip(names, row, strict=True)), "note": {"text": row[3][0]}} for row in rows]


def test_a_stream_becomes_a_table_with_history(spark: SparkSession, tmp_path: Path) -> None:
    source = BatchSource(spark, tmp_path / "in", COLUMNS)
    table, checkpoint = tmp_path / "table", tmp_path / "query"
    rng, model, models = random.Random(1), {}, []
    for batch in range(4):
        rows = rows_of(rng, batch)
        source.add(as_source(rows))
        apply(model, rows)
        models.append(dict(model))
        if batch == 1:
            wait(start(source, table, checkpoint, retainedCheckpoints=3))
    wait(start(source, table, checkpoint, retainedCheckpoints=3))
    with statelog.open(table) as state:
        kept = [one.checkpoint_id for one in state.checkpoints() if one.is_retained]
        assert len(kept) == 3
        for checkpoint_id, wanted in zip(kept, models[1:], strict=True):
            assert table_of(state, checkpoint_id) == wanted
        key = next(iter(model))
        versions = [one.value for one in state.history("row", key)]
        assert versions == [one.get(key) for one in models[1:]]
        changed = state.changes(kept[0], kept[1]).num_rows
        assert changed == sum(
            models[1].get(one) != models[2].get(one) for one in {*models[1], *models[2]}
        )
    frame = spark.read.format("statelog").load(str(table))
    assert frame.count() == len(model)
    # Spark repeats the last micro-batch when its own commit is missing: nothing changes.
    before = newest(table)
    shutil.rmtree(checkpoint / "commits")
    (checkpoint / "commits").mkdir()
    wait(start(source, table, checkpoint, retainedCheckpoints=3))
    assert newest(table).checkpoint_id == before.checkpoint_id
    # Another query has numbers of its own.
    wait(start(source, table, tmp_path / "other", retainedCheckpoints=3))
    # Four checkpoints, the claim before each, and the claim of the repetition.
    assert newest(table).checkpoint_id == before.checkpoint_id + 4 + 4 + 1
    assert len(writers_of(newest(table))) == 2
    # State can be edited like any other; the writers are remembered.
    statelog.edit(table, delete=[key], apply=True)
    wait(start(source, table, checkpoint, retainedCheckpoints=3))
    with statelog.open(table) as state:
        assert state.get("row", key) is None
        assert len(table_of(state)) == len(model) - 1


def newest(table: Path) -> Any:
    return Entries(open_store(table)).newest()


def test_a_batch_frame_upserts(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"

    def write(frame: DataFrame, **options: object) -> None:
        writer = frame.write.format("statelog_table").mode("append").option("key", "id")
        for name, value in options.items():
            writer = writer.option(name, str(value))
        writer.save(str(table))

    write(spark.range(5000).selectExpr("id", "id * 2 as twice"))
    write(spark.range(4990, 5010).selectExpr("id", "0L as twice", "'x' as added"))
    frame = spark.read.format("statelog").load(str(table))
    assert frame.count() == 5010
    assert frame.where("value.twice = 0").count() == 21
    assert frame.where("value.added = 'x'").count() == 20
    rows = spark.read.format("statelog_table").load(str(table))
    assert rows.schema.simpleString() == "struct<id:bigint,twice:bigint,added:string>"
    assert rows.where("id = 4995").collect() == [(4995, 0, "x")]
    some = spark.read.format("statelog_table").option("columns", "added,id").load(str(table))
    assert some.where("id = 4995").collect() == [("x", 4995)]
    write(spark.range(10).selectExpr("id", "true as gone", "1L as twice"), deleteColumn="gone")
    frame = spark.read.format("statelog").load(str(table))
    assert (frame.count(), frame.where("value.added = 'x'").count()) == (5000, 20)
    twice = spark.range(3).selectExpr("1L as id", "id as twice")
    for bad, options, message in (
        (twice, {}, r"several different rows with the key \(1,\); set the option sequenceBy"),
        (spark.range(3), {}, "a column besides its key"),
        (twice, {"key": "other"}, "has no column 'other'"),
        (twice, {"key": " , "}, "names the columns"),
        (twice, {"deleteColumn": "twice"}, "must be boolean"),
        (twice, {"unknown": "1"}, "has no option unknown"),
        (twice.selectExpr("cast(id as string) as id", "twice"), {"sequenceBy": "twice"}, "key"),
        (twice.selectExpr("id as other", "twice"), {"key": "other"}, "has the key id, not other"),
    ):
        with pytest.raises(PySparkException, match=message):
            write(bad, **options)
    write(twice, sequenceBy="twice")
    with statelog.open(table) as state:
        assert state.get("row", 1)["twice"] == 2
    with pytest.raises(PySparkException, match="lacks the columns value; it has id, twice"):
        spark.read.format("statelog_table").option("columns", "value").load(str(table)).count()
    with pytest.raises(PySparkException, match="upserts rows by their key"):
        twice.write.format("statelog_table").mode("overwrite").option("key", "id").save(str(table))


def test_a_table_and_the_state_of_a_query_are_told_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    History("query", open_store(tmp_path, fsync=False)).run(1)
    with pytest.raises(PySparkException, match=r'state of a query.*format."statelog". reads it'):
        spark.read.format("statelog_table").option("stateVarName", "n").load(str(tmp_path)).count()


def test_the_former_name_of_the_format_writes_a_table_with_a_warning(tmp_path: Path) -> None:
    given = {"path": str(tmp_path / "table"), "key": "id"}
    schema = StructType().add("id", "long").add("n", "long")
    with pytest.warns(FutureWarning, match='is now format."statelog_table".'):
        assert pyspark_statelog.DefaultSource(given).writer(schema, False) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pyspark_statelog_table.DefaultSource(given).writer(schema, False) is not None


@pytest.mark.parametrize("point", ["table-before-log", "table-before-commit", "table-after-commit"])
def test_a_killed_commit_is_applied_once(
    spark: SparkSession, tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that commits is killed; the restarted query applies each micro-batch once."""
    columns = TableColumns.of(
        spark._parse_ddl("k bigint, n bigint"), options(tmp_path / "table", "k")
    )
    rng, model = random.Random(point), {}
    made = options(tmp_path / "table", "k", maxParallelism="4")
    for batch in range(12):
        rows = [{"k": rng.randrange(20), "n": batch * 100 + at} for at in range(10)]
        rows = list({row["k"]: row for row in rows}.values())
        schema = arrow_schema(spark._parse_ddl("k bigint, n bigint"))
        part = pa.RecordBatch.from_pylist(rows, schema=schema)
        model.update({row["k"]: row["n"] for row in rows})

        def attempt(part: pa.RecordBatch = part, batch: int = batch) -> int | None:
            parts = [write_part(made, columns, 4, [part])]
            return commit_batch(made, columns, TableBatch("w", batch, parts))

        if batch % 3 == 1:
            with monkeypatch.context() as patched:
                patched.setattr("statelog.spark.table.commit.fail_point", dies_at(point))
                with pytest.raises(Killed):
                    attempt()
            again = attempt()
            assert (again is None) == (point == "table-after-commit")
        else:
            assert attempt() is not None
        assert attempt() is None
    with statelog.open(tmp_path / "table") as state:
        rows = state.table("row").to_pylist()
        assert {row["key.k"]: row["value.n"] for row in rows} == model
        record = state.checkpoints()[-1].properties
        assert json.loads(json.dumps(record["statelog.table.writers"])) == {"w": 11}


class Killed(BaseException):
    """The process ends here."""


def dies_at(wanted: str) -> Any:
    def fail_point(name: str) -> None:
        if name == wanted:
            raise Killed

    return fail_point


def options(path: Path, key: str, **others: str) -> TableOptions:
    return TableOptions.parse({"path": str(path), "key": key, **others})


def test_the_log_is_bounded_by_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    made = options(tmp_path / "table", "k", maxParallelism="16", retainedCheckpoints="2")
    schema = spark._parse_ddl("k bigint, n bigint")
    columns = TableColumns.of(schema, made)
    longest, model = 0, {}
    for batch in range(90):
        rows = [{"k": (batch * 7 + at) % 50, "n": batch} for at in range(5)]
        model.update({row["k"]: row["n"] for row in rows})
        part = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
        commit_batch(made, columns, TableBatch("w", batch, [write_part(made, columns, 16, [part])]))
        longest = max(longest, len(newest(tmp_path / "table").log))
    assert 32 <= longest <= 45
    with statelog.open(tmp_path / "table") as state:
        rows = state.table("row").to_pylist()
        assert {row["key.k"]: row["value.n"] for row in rows} == model


def test_a_query_needs_a_name_that_lasts(spark: SparkSession, tmp_path: Path) -> None:
    made = options(tmp_path / "table", "k", checkpointLocation=str(tmp_path / "none"))
    with pytest.raises(statelog.UsageError, match="Set the option writerId"):
        made.writer_id()
    assert options(tmp_path / "table", "k", writerId="mine").writer_id() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("point", ["table-before-log", "table-before-commit", "table-after-commit"])
def test_sigkill_of_the_whole_query(tmp_path: Path, point: str) -> None:
    """A driver whose committing process gets SIGKILL is started again; each batch counts once."""
    inputs = tmp_path / "in"
    inputs.mkdir()
    for batch in range(4):
        rows = "\n".join(json.dumps({"k": k, "n": batch * 10 + k}) for k in range(batch, batch + 5))
        (inputs / f"{batch}.json").write_text(rows)
        os.utime(inputs / f"{batch}.json", (1_600_000_000 + batch,) * 2)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for run in range(6):
        environment = {**os.environ}
        if run < 3:
            environment["STATELOG_FAIL_POINTS"] = f"{point}:1"
        arguments = [sys.executable, str(program), str(inputs), str(tmp_path)]
        code, said = run_program(arguments, environment, tmp_path / f"run-{run}")
        if code == 0:
            break
        assert run < 3, said[-2000:]
    assert run >= 3
    with statelog.open(tmp_path / "table") as state:
        found = {row["key.k"]: row["value.n"] for row in state.table("row").to_pylist()}
        batches = [one.batch_id for one in state.checkpoints() if one.is_retained]
    assert found == {k: min(k, 3) * 10 + k for k in range(8)}
    assert batches == [0, 1, 2, 3]


def run_program(arguments: list[str], environment: dict[str, str], log: Path) -> tuple[int, str]:
    """Run a program to its end, with its children; return its status and what it printed."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = process.wait(180)
        finally:
            # Spark's own children outlive a driver that ends with an error.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return code, log.read_text(errors="replace")


PROGRAM = """
import sys
from statelog.demo.java import prepare_environment
prepare_environment()
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "512m").getOrCreate()
)
frame = spark.readStream.schema("k bigint, n bigint").option("maxFilesPerTrigger", 1).json(sys.argv[1])
query = (
    frame.writeStream.format("statelog_table").option("key", "k").option("retainedCheckpoints", "9")
    .option("checkpointLocation", sys.argv[2] + "/query").trigger(availableNow=True)
    .start(sys.argv[2] + "/table")
)
query.awaitTermination(150)
"""
