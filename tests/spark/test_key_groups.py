"""The key group of a key, and which keys are equal: Spark, Python and the document agree."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from tests.support.spark.equal_keys import check_aggregate, check_columns, check_rows, rows_in
from tests.support.spark.processors import TOTALS, Totals
from tests.support.spark.streams import BatchSource, Job, configured, run_on_spark
from tests.support.values.key_group_vectors import TYPES, VECTORS
from tests.support.values.keyed_types import in_text

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark import transform_with_state
from statelog.spark.query.keyed_frame import by_task
from statelog.spark.rows.layout import INPUT_KEY_GROUP_COLUMN as COLUMN
from statelog.state.keys.key_groups import hash_of
from statelog.state.keys.key_hash import hash_columns


def spark_hash(columns: list[tuple[str, str]]) -> str:
    """Return the SQL that hashes a key of literals."""
    return f"xxhash64({', '.join(literal(kind, text) for kind, text in columns)})"


def literal(kind: str, text: str) -> str:
    if kind == "BINARY":
        return f"X'{text}'"
    if text == "NULL" or kind == "STRING":
        return f"CAST({text} AS {kind})"
    return f"CAST('{text}' AS {kind})"


def test_spark_gives_the_hashes_that_are_written_down(spark):
    hashes = [
        f"{spark_hash(columns)} AS h{number}, pmod({spark_hash(columns)}, 128) AS g{number}"
        for number, (columns, _, _) in enumerate(VECTORS)
    ]
    row = spark.sql("SELECT " + ", ".join(hashes)).first()
    assert row is not None
    expected = [(value, key_group) for _, value, key_group in VECTORS]
    assert expected == list(zip(row[::2], row[1::2], strict=True))


@pytest.mark.parametrize("tasks", [1, 2, 7, 64])
def test_rows_get_to_their_tasks_by_number_or_by_a_hash_that_is_inverted(spark, tasks, monkeypatch):
    """4.0 has no `repartitionById`."""
    groups = spark.range(0, 128 * 3, 1, 5).selectExpr(f"cast(id % 128 as int) {COLUMN}")
    placed = groups.selectExpr("*", f"cast({COLUMN} * {tasks} div 128 as int) task")
    for has_method in (True, False):
        with monkeypatch.context() as patch:
            if not has_method:
                for kind in (type(placed), DataFrame):
                    patch.delattr(kind, "repartitionById", raising=False)
            partitioned = by_task(placed, tasks, KeyGroupRange(0, 127)).selectExpr(
                "task", "spark_partition_id() place"
            )
            assert tasks == partitioned.rdd.getNumPartitions()
            assert 128 * 3 == partitioned.where("task = place").count()


def test_python_gives_the_hash_of_spark_for_windows(spark):
    rows = spark.range(50).selectExpr(
        "CASE WHEN id % 7 > 0 THEN named_struct('start', CASE WHEN id % 5 > 0 THEN "
        "timestamp_seconds(id) END, 'end', nullif(timestamp_seconds(id + 60), timestamp_seconds(0)), "
        "'in', CASE WHEN id % 4 > 0 THEN named_struct('n', nullif(id, 5)) END) END AS window",
        "CASE WHEN id % 3 > 0 THEN concat('k', id) END AS name",
    )
    table = rows.selectExpr("*", "xxhash64(window, name) AS h").toArrow()
    keys = table.select(["window", "name"])
    hashes = hash_columns([column.combine_chunks() for column in keys.columns], keys.schema)
    assert table.column("h").to_pylist() == hashes.view("int64").tolist()


MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31), allow_imaginary=False)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BOOLEAN": st.booleans(),
    "TINYINT": st.integers(-(2**7), 2**7 - 1),
    "SMALLINT": st.integers(-(2**15), 2**15 - 1),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "FLOAT": st.floats(width=32),
    "DOUBLE": st.floats(),
    "DECIMAL(10,2)": st.decimals(-(10**7), 10**7, places=2),
    "DECIMAL(38,10)": st.decimals(
        decimal.Decimal(10) ** 27 * -9, decimal.Decimal(10) ** 27 * 9, places=10
    ),
    "STRING": st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    "BINARY": st.binary(max_size=80),
    "DATE": st.dates(),
    "TIMESTAMP": MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC)),
    "TIMESTAMP_NTZ": MOMENTS,
}
SCHEMA = pa.schema([(f"c{number}", TYPES[kind][0]) for number, kind in enumerate(VALUES)])
ROW = st.tuples(*(st.one_of(st.none(), values, values, values) for values in VALUES.values()))


def some_rows(count: int) -> list[tuple[Any, ...]]:
    """Return rows that hypothesis makes; one by one, because many at once exceed its buffer."""
    rows: list[tuple[Any, ...]] = []

    @settings(max_examples=count, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(ROW)
    def add(row: tuple[Any, ...]) -> None:
        rows.append(row)

    add()
    return rows


def test_python_gives_the_hash_of_spark_for_any_value(spark):
    assert list(VALUES) == list(TYPES)
    rows = some_rows(400)
    table = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )
    # Each column by itself, and all of them one after the other.
    keys = [[name] for name in SCHEMA.names] + [SCHEMA.names]
    hashes = [f"xxhash64({', '.join(names)}) AS h{number}" for number, names in enumerate(keys)]
    of_spark = spark.createDataFrame(table).selectExpr(*hashes).collect()
    single = [SCHEMA.empty_table().select([place]).schema for place in range(len(SCHEMA))]
    for row, expected in zip(rows, of_spark, strict=True):
        actual = [hash_of((value,), schema) for value, schema in zip(row, single, strict=True)]
        assert list(expected) == [*actual, hash_of(row, SCHEMA)], row


@pytest.mark.parametrize("zone", ["America/New_York"], indirect=True)
def test_all_faces_group_as_spark_groups(spark, tmp_path, zone):
    rows = rows_in(spark, tmp_path / "rows" / "in", zone, "rows")
    check_rows(rows, tmp_path / "rows", "pair", "double")
    rows = rows_in(spark, tmp_path / "columns" / "in", zone, "columns")
    check_columns(rows, tmp_path / "columns", "window")
    rows = rows_in(spark, tmp_path / "sums" / "in", zone, "sums", functions=True)
    check_aggregate(rows, tmp_path / "sums", "at")


def test_zeros_and_nans_are_one_key_as_in_a_group_by(spark, tmp_path):
    source = BatchSource(spark, tmp_path / "in", "key double, amount bigint")
    job = Job(source, tmp_path, ["key"], Totals(), TOTALS.replace("key bigint", "key double"))
    for zero in (-0.0, 0.0, -0.0):
        source.add([(zero, 1), (float("nan"), 1), (-float("nan"), 1), (None, 1)])
    job.run(tasks=2)
    output = [in_text(batch) for batch in job.take()]
    seen = spark.read.schema(source.schema).parquet(str(source.folder))
    expected = seen.groupBy("key").agg(sf.sum("amount").alias("total"), sf.count("*").alias("rows"))
    assert in_text(expected.collect()) == output[-1]
    assert ["key=0.0; total=1; rows=1", "key=0.0; total=2; rows=2", "key=0.0; total=3; rows=3"] == [
        row for batch in output for row in batch if "key=0.0" in row
    ]
    # Spark's own operator keeps a state of each zero.
    of_spark = [row.total for batch in run_on_spark(job) for row in batch if row.key == 0]
    assert [1, 1, 2] == of_spark


def test_columns_of_one_name_are_rejected(spark, tmp_path):
    frame = BatchSource(spark, tmp_path / "in", "key bigint, amount bigint").frame()
    for names in ("amount as v, amount as v", "amount as V, amount as v"):
        twice = frame.selectExpr("key", *names.split(", "))
        with pytest.raises(UsageError, match=r"several columns with the same name: [vV], v"):
            transform_with_state(twice.groupBy("key"), Totals(), TOTALS)
    with configured(spark, {"spark.sql.caseSensitive": "true"}):
        transform_with_state(twice.groupBy("key"), Totals(), TOTALS)
