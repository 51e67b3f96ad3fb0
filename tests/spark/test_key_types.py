"""Each type of a key gives the groups of Spark's `groupBy`, or is rejected by the name of its column."""

import inspect
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession, types
from pyspark.sql import functions as sf
from tests.support.jobs.task_query import GROUPS, Query
from tests.support.spark.streams import BatchSource, Job, configured
from tests.support.spark.versions import needs

from statelog.errors import ProcessorError, UsageError
from statelog.extensions.columns.rows import ColumnarFormat
from statelog.model import KeyGroupRange
from statelog.spark import (
    ColumnarProcessor,
    StatefulProcessor,
    aggregate,
    transform_with_state,
)
from statelog.spark import functions as F
from statelog.spark.query.declared_state import declared_by
from statelog.spark.query.keyed_frame import grouping_of, keyed_frame
from statelog.spark.rows.formats import RowFormat, SparkRowFormat
from statelog.spark.rows.key_types import KEY_TYPES
from statelog.spark.rows.spark_versions import parsed_ddl
from statelog.spark.rows.types import arrow_schema

pytestmark = needs((4, 3), "all types of keys")

ROWS = 60
SWITCHES = (
    "spark.sql.timeType.enabled",
    "spark.sql.timestampNanosTypes.enabled",
    "spark.sql.preserveCharVarcharTypeInfo",
)


def cast(kind: str, *texts: str) -> list[str]:
    return [f"CAST('{text}' AS {kind})" for text in texts]


FLOATS = ("0.0", "-0.0", "NaN", "-NaN", "Infinity", "1.5")
TIMES = ("2024-11-03 05:30:00", "2024-11-03 06:30:00", "1970-01-01 00:00:00", "2024-03-10 02:30:00")
POOLS = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": cast("TINYINT", "0", "-128", "127"),
    "SMALLINT": cast("SMALLINT", "0", "-1", "32767"),
    "INT": cast("INT", "0", "-1", "2147483647"),
    "BIGINT": cast("BIGINT", "0", "-1", "9007199254740992", "9007199254740993"),
    "DECIMAL(9,2)": cast("DECIMAL(9,2)", "0", "1.5", "1.50", "-1.5"),
    "DECIMAL(38,18)": cast("DECIMAL(38,18)", "0", "0.000000000000000001", "-1", "1.0"),
    "FLOAT": cast("FLOAT", *FLOATS),
    "DOUBLE": cast("DOUBLE", *FLOATS),
    "STRING": ["''", "'a'", "'A'", "'a '", "'\\u00e9'", "'e\\u0301'", "'\\u0000'"],
    "CHAR(3)": cast("CHAR(3)", "", "a", "a ", "A"),
    "VARCHAR(3)": cast("VARCHAR(3)", "", "a", "a ", "A"),
    "BINARY": ["X''", "X'00'", "X'61'", "X'6100'"],
    "DATE": cast("DATE", "1970-01-01", "1582-10-15", "9999-12-31"),
    "TIMESTAMP": cast("TIMESTAMP", *TIMES),
    "TIMESTAMP_NTZ": cast("TIMESTAMP_NTZ", *TIMES),
    "TIME(0)": cast("TIME(0)", "00:00:00", "23:59:59"),
    "TIME(6)": cast("TIME(6)", "00:00:00", "00:00:00.000001", "23:59:59.999999"),
    "INTERVAL DAY TO SECOND": ["INTERVAL '0' DAY", "INTERVAL '24' HOUR", "INTERVAL '1' DAY"],
    "INTERVAL MINUTE": ["INTERVAL '1' MINUTE", "INTERVAL '60' MINUTE"],
    "VOID": ["NULL"],
}
"""By type: SQL of values, some of which are equal or look equal."""

FORMS: dict[str, tuple[str, ...]] = {
    "alone": ("{a}",),
    "two": ("{a}", "{b}"),
    "struct": ("named_struct('x', {a}, 'y', {b})",),
    "array": ("array({a}, {b})",),
    "deep": ("if(c = 0, NULL, named_struct('x', array(named_struct('y', {a}))))",),
}


FORMS_OF_FACE = {"rows": [*FORMS], "columns": ["alone", "deep"]}
"""The forms in which each face gets keys: frames have the keys of rows."""


class Members(StatefulProcessor):
    """Keeps the numbers of the rows of each key."""

    def init(self, handle):
        self.members = handle.getListState("members", "i bigint")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            for number in self.numbers(row):
                self.members.appendValue((number,))
        members = [number for (number,) in self.members.get()]
        yield self.output({"i": members, "first": [min(members)] * len(members)})

    def numbers(self, row: Any) -> list[int]:
        return [row.i]

    def output(self, columns: dict[str, list[int]]) -> Any:
        return Row(**columns)


class ColumnarMembers(ColumnarProcessor):
    """Keeps the number of the first row of each key."""

    def init(self, handle):
        self.first = handle.getColumnState("first", "i bigint")

    def process(self, keys, rows, times):
        before = self.first.get(keys)["i"].to_pylist()
        news = np.minimum.reduceat(rows["i"].to_numpy(), keys.starts).tolist()
        first = [new if old is None else old for old, new in zip(before, news, strict=True)]
        self.first.put(keys, {"i": first})
        ends = [*keys.starts.tolist()[1:], rows.num_rows]
        members = rows["i"].to_pylist()
        yield {
            "i": [members[a:b] for a, b in zip(keys.starts.tolist(), ends, strict=True)],
            "first": [[number] for number in first],
        }


OUTPUT = "i array<bigint>, first array<bigint>"


FACES: dict[str, tuple[RowFormat, Any]] = {
    "rows": (SparkRowFormat(), Members()),
    "columns": (ColumnarFormat(), ColumnarMembers()),
}


@pytest.fixture
def switched(spark):
    """A session with the types that Spark does not have by default."""
    with configured(spark, dict.fromkeys(SWITCHES, "true")):
        yield spark


def with_keys(spark: SparkSession, kind: str) -> DataFrame:
    """Rows with keys of each form: i, then <form>0, <form>1."""
    rng, pool = random.Random(kind), POOLS[kind]
    places = [None, *range(1, len(pool) + 1)]
    rows = [(i, rng.choice(places), rng.choice(places), rng.randrange(3)) for i in range(ROWS)]
    values = {name: f"element_at(array({', '.join(pool)}), {name})" for name in "ab"}
    return spark.createDataFrame(rows, "i bigint, a int, b int, c int").selectExpr(
        "i",
        *(
            f"{part.format(**values)} AS {form}{place}"
            for form, parts in FORMS.items()
            for place, part in enumerate(parts)
        ),
    )


Groups = set[frozenset[int]]

EVERY_DAY = ("DOUBLE", "STRING", "TIMESTAMP")
"""The types tried outside of campaigns: zeros and NaN, texts, and times."""


def groups_of_spark(frame: DataFrame) -> dict[str, Groups]:
    """The numbers of the rows of each group, by form, in one job."""
    parts = [
        frame.groupBy(*names(form))
        .agg(sf.collect_list("i").alias("i"))
        .select(sf.lit(form).alias("form"), "i")
        for form in FORMS
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    groups: dict[str, Groups] = {form: set() for form in FORMS}
    for form, numbers in whole.collect():
        groups[form].add(frozenset(numbers))
    return groups


def names(form: str) -> list[str]:
    return [f"{form}{place}" for place in range(len(FORMS[form]))]


def groups_of_tasks(rows: Sequence[dict[str, Any]]) -> Groups:
    firsts: dict[int, int] = {}
    for row in rows:
        firsts |= dict.fromkeys(row["i"], row["first"][0])
    groups: dict[int, set[int]] = {}
    for number, first in firsts.items():
        groups.setdefault(first, set()).add(number)
    return {frozenset(group) for group in groups.values()}


@pytest.mark.parametrize(
    "kind",
    [kind if kind in EVERY_DAY else pytest.param(kind, marks=pytest.mark.slow) for kind in POOLS],
)
def test_keys_have_the_groups_of_spark(switched, tmp_path, kind):
    frame = with_keys(switched, kind)
    keyed = {
        form: keyed_frame(grouping_of(frame.groupBy(*names(form))), KeyGroupRange(0, GROUPS - 1))
        for form in FORMS
    }
    sent = [sf.col("*"), *(keyed[form].columns[0].alias(f"g_{form}") for form in FORMS)]  # type: ignore[union-attr]
    # As the tasks get them: `toArrow` does not take a null struct whose fields are NOT NULL.
    batches: Any = frame.select(*sent)._collect_as_arrow()  # type: ignore[operator]
    table = pa.Table.from_batches(batches)
    expected = groups_of_spark(frame)
    for form in FORMS:
        columns = [table[f"g_{form}"], *(table[name] for name in names(form)), table["i"]]
        input_names = ["__key_group", *names(form), "i"]
        # Spark's shuffle does not keep the order of rows; a restart comes between the batches.
        whole = pa.table(columns, names=input_names).combine_chunks()
        halves = [whole.slice(0, ROWS // 2).to_batches(), whole.slice(ROWS // 2).to_batches()]
        key = arrow_schema(keyed[form].key_schema)
        for face, (row_format, processor) in FACES.items():
            if form not in FORMS_OF_FACE[face]:
                continue
            query = Query(
                tmp_path / form / face, processor, row_format, 1 << 30, output=OUTPUT, key=key
            )
            rows = query.run(halves[0], forget=True)
            rows += query.run(halves[1], forget=True)
            assert expected[form] == groups_of_tasks(rows), (kind, form, face)


REJECTED = {
    "text COLLATE UTF8_LCASE": "string collate UTF8_LCASE.*by its collation",
    "text COLLATE UNICODE": "string collate UNICODE.*by its collation",
    "text COLLATE UTF8_BINARY_RTRIM": "string collate UTF8_BINARY_RTRIM.*by its collation",
    "CAST('10:00:00.123456789' AS TIME(9))": r"time\(9\).*microsecond resolution",
    "INTERVAL '1' YEAR": "interval year .*as an INT",
    "make_interval(1, 2)": "interval .*as an INT",
    "parse_json('1')": "variant .*does not group",
    "ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')": "geometry.*ST_AsBinary",
    "ST_GeogFromWKB(X'0101000000000000000000F03F0000000000000040')": "geography.*ST_AsBinary",
    "map(text, 1)": "map<string,int> .*map_entries",
    "struct()": "struct<> .*distinct names",
    "named_struct('x', 1, 'x', 2)": "struct<x:int,x:int> .*distinct names",
}
PLACES = {"{0}": "'k'", "named_struct('t', {0})": r"'k\.t'", "array({0})": r"'k\[\]'"}


def test_other_types_are_rejected_by_name(switched):
    for expression, reason in REJECTED.items():
        for form, path in PLACES.items():
            key = f"{form.format(expression)} AS k"
            grouped = switched.sql("SELECT 'a' AS text").selectExpr(key, "text").groupBy("k")
            for call in (
                lambda grouped=grouped: transform_with_state(grouped, Members(), OUTPUT),
                lambda grouped=grouped: aggregate(grouped, F.count().alias("n")),
            ):
                with pytest.raises(UsageError, match=f"the column {path} of type {reason}"):
                    call()


def test_a_type_that_pyspark_cannot_read_is_rejected_by_name(switched):
    time = "CAST('2024-01-01 00:00:00' AS TIMESTAMP_NTZ(9))"
    frame = switched.range(1).selectExpr("id", f"named_struct('at', {time}) AS k")
    for grouped in (frame.groupBy("k"), frame.groupBy("id")):
        with pytest.raises(UsageError, match=r"column 'k' has the type .*timestamp_ntz\(9\)"):
            transform_with_state(grouped, Members(), OUTPUT)
        with pytest.raises(UsageError, match=r"column 'k' has the type .*timestamp_ntz\(9\)"):
            aggregate(grouped, F.count().alias("n"))


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("INTERVAL '1' YEAR", "column 'v' has the type interval year"),
        ("array(make_interval(1, 2))", "column 'v' has the type array<interval>"),
        ("struct(named_struct('x', 1, 'x', 2) AS t)", r"column 'v\.t' is a struct with two fields"),
    ],
)
def test_an_input_column_that_cannot_be_sent_is_rejected_by_name(switched, expression, reason):
    frame = switched.range(1).selectExpr("id", f"{expression} AS v")
    with pytest.raises(UsageError, match=reason):
        transform_with_state(frame.groupBy("id"), Members(), OUTPUT, inputColumns="all")
    transform_with_state(frame.groupBy("id"), Members(), OUTPUT, inputColumns=["id"])


class MapKeys(StatefulProcessor):
    def __init__(self, key: str, value: str = "n bigint") -> None:
        self.key, self.value = key, value

    def init(self, handle):
        handle.getMapState("seen", self.key, self.value)

    def handleInputRows(self, key, rows, timerValues):
        return iter(())


MAP_KEYS = {
    "x STRING COLLATE UTF8_LCASE": "'x' of its map key has the type string collate",
    "x STRUCT<y: STRING COLLATE UNICODE>": r"'x\.y' of its map key",
    "x TIME(6)": r"'x' of its map key has the type time\(6\)",
    "x VARIANT": "'x' of its map key has the type variant",
    "x CHAR(3)": r"'x' of its map key has the type char\(3\)",
    "x INTERVAL YEAR": "'x' of its map key has the type interval year",
    "x ARRAY<INT>": "'x' of its map key has the type array<int>",
    "x MAP<INT, INT>": "'x' of its map key has the type map<int,int>",
}


def test_keys_of_maps_are_rejected_by_name(switched):
    for key, reason in MAP_KEYS.items():
        with pytest.raises(ProcessorError, match=f"state 'seen': the field {reason}"):
            transform_with_state(switched.range(1).groupBy("id"), MapKeys(key), OUTPUT)


def test_values_and_outputs_are_rejected_by_name(switched):
    grouped = switched.range(1).groupBy("id")
    for kind in ("INTERVAL YEAR", "VARCHAR(3)", "TIME(6)"):
        with pytest.raises((ProcessorError, UsageError), match=r"state 'seen': .*'v'"):
            transform_with_state(grouped, MapKeys("x INT", f"v {kind}"), OUTPUT)
    for kind in ("INTERVAL YEAR", "CHAR(3)"):
        with pytest.raises(UsageError, match="outputStructType: the column 'v'"):
            transform_with_state(grouped, Members(), f"id bigint, v {kind}")


def test_keys_of_maps_that_are_accepted_can_be_kept(switched):
    for kind in POOLS:
        if kind.startswith(("TIME(", "CHAR", "VARCHAR")):
            continue
        state = declared_by(
            MapKeys(f"x {kind}, y STRUCT<z: {kind}>"),
            "op",
            pa.schema([("k", pa.int64())]),
            lambda ddl: parsed_ddl(switched, ddl),  # type: ignore[arg-type,return-value]
            time_mode="none",
        ).state
        assert state.states[0].user_key_schema is not None


ABSTRACT = {
    "AnsiIntervalType",
    "AnyTimeType",
    "AtomicType",
    "DataType",
    "DatetimeType",
    "FractionalType",
    "IntegralType",
    "NumericType",
    "SpatialType",
    "StructField",
    "UserDefinedType",
}


def test_the_table_has_every_type_of_spark():
    classes = {
        name
        for name, kind in vars(types).items()
        if inspect.isclass(kind) and issubclass(kind, types.DataType)
    }
    assert classes - ABSTRACT == {name for rule in KEY_TYPES for name in rule.classes}


class Count(StatefulProcessor):
    """Counts the rows of each key, and of each key in a map, whose field may be null or not."""

    def __init__(self, null: str) -> None:
        self.null = null

    def init(self, handle):
        self.n = handle.getValueState("n", "n bigint")
        self.seen = handle.getMapState("seen", f"x struct<a: int {self.null}>", "n bigint")

    def handleInitialState(self, key, row, timerValues):
        self.n.update((row.n,))

    def handleInputRows(self, key, rows, timerValues):
        (n,) = self.n.get() or (0,)
        (seen,) = self.seen.getValue(((1,),)) or (0,)
        added = len(list(rows))
        self.n.update((n + added,))
        self.seen.updateValue(((1,),), (seen + added,))
        yield Row(a=key[0]["a"], n=n + added, seen=seen + added)


KEYS = {"nullable": "struct(a, b)", "not null": "struct(coalesce(a, 0) AS a, coalesce(b, '') AS b)"}


@pytest.mark.parametrize(("first", "second"), [("nullable", "not null"), ("not null", "nullable")])
def test_nullable_fields_of_a_key_may_change(spark, tmp_path, first, second):
    source = BatchSource(spark, tmp_path / "in", "a int, b string")
    initial = spark.sql(f"SELECT {KEYS[second]} AS key, 100L AS n FROM VALUES (1, 'x') AS t(a, b)")
    job = Job(source, tmp_path, [], Count(""), "a int, n bigint, seen bigint", {"tasks": 1})
    rows = []
    for key in (first, second):
        source.add([(1, "x")])
        job.run(
            keys=[sf.expr(KEYS[key]).alias("key")],
            processor=Count("NOT NULL" if key == "not null" else ""),
            initialState=initial.groupBy("key"),
        )
        rows += job.take()
    assert [[Row(a=1, n=101, seen=1)], [Row(a=1, n=102, seen=2)]] == rows
