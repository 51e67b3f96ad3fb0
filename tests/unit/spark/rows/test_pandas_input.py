"""The pandas flavour without Spark: frames cut from blocks are those that PySpark builds row by row."""

import datetime as dt
import decimal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pandas.testing
import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql.types import StructType
from tests.support.jobs.pandas_input import SETTINGS, ZONE, all_keys, read
from tests.support.spark.versions import of_spark

from statelog.errors import ProcessorError
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.rows import pandas_input, pandas_output
from statelog.spark.rows.layout import InputLayout
from statelog.spark.rows.pandas_input import FrameInput, PandasSettings
from statelog.spark.rows.pandas_internals import BlockAccess, PublicAccess
from statelog.spark.rows.pandas_output import FrameOutput
from statelog.spark.rows.spark_row import RowInput
from statelog.spark.rows.types import arrow_schema
from statelog.state.encoding.values import KeyCodec

Frames = dict[tuple[Any, ...], list[pd.DataFrame]]


@pytest.fixture(scope="module", params=[BlockAccess, PublicAccess], autouse=True)
def access(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test by pandas' internals, and by its public API."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (pandas_input, pandas_output):
            patch.setattr(module, "frame_access", request.param)
        yield


def to_pandas() -> Any:
    """PySpark's own conversion."""
    return of_spark("pyspark.sql.conversion", "ArrowBatchTransformer").to_pandas


def to_arrow() -> Any:
    """PySpark's own conversion."""
    return of_spark("pyspark.sql.conversion", "PandasToArrowConversion").convert


def as_pyspark_does(table: pa.Table, keys: list[int], settings: PandasSettings) -> Frames:
    """The frames of each key, by way of tuples of Python objects."""
    series = to_pandas()(
        table, timezone=settings.timezone, prefer_int_ext_dtype=settings.int_extension
    )
    grouped: dict[tuple[Any, ...], list[Any]] = {}
    names = [tuple(row) for row in zip(*(table.column(k).to_pylist() for k in keys), strict=True)]
    rows = pd.concat(series, axis=1).itertuples(index=False)
    for key, row in zip(names, rows, strict=True):
        grouped.setdefault(key, []).append(row)
    return {
        key: [
            pd.DataFrame(rows[start : start + settings.max_records])
            for start in range(0, len(rows), settings.max_records)
        ]
        for key, rows in grouped.items()
    }


NOW = dt.datetime(2024, 11, 3, 5, 30, tzinfo=dt.UTC)
ROWS = 40
TABLE = pa.table(
    {
        "k": pa.array([i % 7 for i in range(ROWS)], pa.int64()),
        "s": pa.array(["x" if i % 3 else None for i in range(ROWS)]),
        "byte": pa.array(range(ROWS), pa.int8()),
        "short": pa.array([None if i == 3 else i for i in range(ROWS)], pa.int16()),
        "f": pa.array([i / 3 for i in range(ROWS)], pa.float32()),
        "d": pa.array([None if i % 5 == 0 else i / 3 for i in range(ROWS)]),
        "b": pa.array([None if i % 7 == 2 else i % 2 == 0 for i in range(ROWS)]),
        "whole": pa.array([i % 2 == 0 for i in range(ROWS)]),
        "date": pa.array([dt.date(2024, 1, 1 + i % 28) for i in range(ROWS)]),
        "at": pa.array(
            [None if i % 9 == 0 else NOW + dt.timedelta(minutes=i) for i in range(ROWS)],
            pa.timestamp("us", tz=ZONE),
        ),
        "ntz": pa.array([dt.datetime(2024, 1, 1, i % 24) for i in range(ROWS)], pa.timestamp("us")),
        "dec": pa.array([decimal.Decimal(i) / 4 for i in range(ROWS)], pa.decimal128(10, 2)),
        "bin": pa.array([bytes([i]) for i in range(ROWS)]),
        "span": pa.array([dt.timedelta(seconds=i) for i in range(ROWS)], pa.duration("us")),
        "list": pa.array([[i, None] if i % 2 else None for i in range(ROWS)], pa.list_(pa.int64())),
        "map": pa.array([[("a", i)] for i in range(ROWS)], pa.map_(pa.string(), pa.int32())),
        "row": pa.array([{"x": i, "y": str(i)} for i in range(ROWS)]),
        "order id": pa.array(range(ROWS), pa.int64()),
        "_hidden": pa.array(range(ROWS), pa.int32()),
    }
)


@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("max_records", [10_000, 3])
def test_frames_are_those_that_pyspark_builds(extension: bool, max_records: int) -> None:
    settings = replace(SETTINGS, int_extension=extension, max_records=max_records)
    expected = as_pyspark_does(TABLE, [0], settings)
    built = {key: frames for key, _, frames in all_keys(read(TABLE, [0], settings))}
    assert built.keys() == expected.keys()
    for key, frames in expected.items():
        assert len(built[key]) == len(frames)
        for ours, theirs in zip(built[key], frames, strict=True):
            if theirs["short"].dtype == "float64" and not theirs["short"].hasnans:
                # The one documented difference: PySpark has floats for all keys of an Arrow batch.
                theirs["short"] = theirs["short"].astype("int64")
            pandas.testing.assert_frame_equal(ours, theirs, check_index_type=True)
            assert isinstance(ours.index, pd.RangeIndex)


KEYS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, float("nan"), 1.5]))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b"]))
LISTS = st.lists(st.integers(0, 1), max_size=2)


@given(st.lists(st.tuples(KEYS, TEXTS, LISTS, st.integers(0, 3)), min_size=1, max_size=40))
def test_keys_are_grouped_as_in_the_row_flavour(rows: list[tuple[Any, ...]]) -> None:
    names = ["__key_group", "f", "s", "l", "n"]
    types = [pa.int32(), pa.float64(), pa.string(), pa.list_(pa.int64()), pa.int64()]
    schema = pa.schema(list(zip(names, types, strict=True)))
    # The key group is a function of the key.
    with_groups = [(len(row[1] or "") + len(row[2]), *row) for row in rows]
    table = pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in with_groups], schema=schema
    )
    codec = KeyCodec(pa.schema([schema.field(at) for at in (1, 2, 3)]))
    layout = InputLayout((1, 2, 3), 1)
    frames, by_row = FrameInput(layout, codec, SETTINGS), RowInput(layout, codec)
    for keyed_input in (frames, by_row):
        keyed_input.read(table.to_batches(max_chunksize=5))
    assert frames.key_groups() == by_row.key_groups()
    for key_group in by_row.key_groups():
        ours = [(key, [n for f in fs for n in f["n"]]) for key, _, fs in frames.keys(key_group)]
        assert ours == [(key, [row.n for row in rs]) for key, _, rs in by_row.keys(key_group)]
    assert frames.row_count == by_row.row_count == len(rows)


def test_frames_are_lazy_and_a_change_of_one_reaches_no_other() -> None:
    *first, (_, _, (last,)) = all_keys(read(TABLE, [0]))
    before = last.copy()
    for _, _, (frame,) in first:
        frame["s"].to_numpy()[:] = "changed"
        frame["byte"] += 1
        frame.loc[:, "d"] = -1.0
        frame.iloc[0, 4] = 7.0
        frame["new"] = 1
        frame.columns.name = "of the user"
        frame.index.name = "of the user"
        frame.drop(columns="bin", inplace=True)
    pandas.testing.assert_frame_equal(last, before)
    assert all((frame["d"] == -1.0).all() for _, _, (frame,) in first)
    again = read(TABLE, [0])
    for _, _, (fresh,) in all_keys(again):
        assert fresh.columns.name is None and fresh.index.name is None
        assert "bin" in fresh and "new" not in fresh
    (_, _, frames) = next(iter(again.keys(again.key_groups()[0])))
    assert iter(frames) is frames  # an iterator: nothing is cut before it is asked for


def test_timestamp_keys_are_shown_as_in_frames_and_stored_as_for_rows() -> None:
    table = TABLE.select(["at", "k"])
    keys = list(all_keys(read(table, [0])))
    shown = {shown[0] for _, shown, _ in keys}
    assert shown == {None if pd.isna(at) else at for _, _, fs in keys for f in fs for at in f["at"]}
    assert {key[0] for key, _, _ in keys} == set(table.column("at").to_pylist())


def test_chunks_by_bytes() -> None:
    row_bytes = TABLE.nbytes / ROWS
    settings = replace(SETTINGS, max_bytes=int(2.5 * row_bytes))
    sizes = {len(f) for _, _, frames in all_keys(read(TABLE, [0], settings)) for f in frames[:-1]}
    assert sizes == {3}
    settings = replace(SETTINGS, max_bytes=1)
    assert all(len(f) == 1 for _, _, fs in all_keys(read(TABLE, [0], settings)) for f in fs)


OUTPUT = parse_ddl("n long, x double, s string, at timestamp, dec decimal(10,2), list array<int>")


def frame_of(n: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "s": [f"s{n}", None], "n": [n, n + 1], "extra": [object(), object()],
            "x": [n / 2, None], "at": [pd.Timestamp(2024, 7, 1, n % 24), pd.NaT],
            "dec": [decimal.Decimal(n), None], "list": [[n], np.array([1, 2])],
        },
    )  # fmt: skip


def test_frames_that_spark_does_not_infer_keep_arrows_names_and_types() -> None:
    """As on 4.0, and on 4.1 with initial state."""
    table = TABLE.rename_columns([f"a {name}" for name in TABLE.column_names])
    keyed_input = read(table, [0], replace(SETTINGS, infers=False))
    for _, _, frames in all_keys(keyed_input):
        for frame in frames:
            assert table.column_names == frame.columns.tolist()
            kinds = {name.removeprefix("a "): str(kind) for name, kind in frame.dtypes.items()}
            assert ("int8", "float32") == (kinds["byte"], kinds["f"])
            assert ("float64" if frame["a short"].hasnans else "int16") == kinds["short"]
            assert ("object", "bool") == (kinds["b"], kinds["whole"])


def output(settings: PandasSettings = SETTINGS, schema: StructType = OUTPUT) -> FrameOutput:
    return FrameOutput(arrow_schema(schema), schema, 4, settings)


def one_by_one(frames: list[pd.DataFrame], schema: StructType = OUTPUT) -> pa.Table:
    options = {"timezone": ZONE, "safecheck": True, "arrow_cast": True, "assign_cols_by_name": True}
    batches = [to_arrow()(frame, schema, **options) for frame in frames]
    return pa.Table.from_batches(batches).cast(arrow_schema(schema))


def test_output_is_what_pyspark_converts_frame_by_frame() -> None:
    frames = [frame_of(n) for n in range(10)]
    frames[3] = frames[3].drop(columns="extra")[OUTPUT.names[::-1]]
    frames[4]["n"] = frames[4]["n"].astype("int32")
    frames[5]["s"] = frames[5]["s"].astype("category")
    frames[6]["at"] = frames[6]["at"].dt.tz_localize("UTC")
    frames[7]["n"] = frames[7]["n"].astype("Int64")
    frames[8] = frames[8].iloc[:0]
    frames.append(pd.DataFrame())
    # Columns without names are taken by position: those of the output, in its order, are numbered.
    numbered = frame_of(3).set_axis(range(7), axis=1)[[1, 3, 0, 4, 5, 6]]
    frames.append(numbered.set_axis(range(6), axis=1))
    expected = one_by_one(frames)
    ours = output()
    ours.extend(iter(frames))
    assert pa.Table.from_batches([ours.batch()]).equals(expected)


def test_a_frame_that_is_yielded_again_and_changed_in_between() -> None:
    ours = output(schema=parse_ddl("n long"))
    frame = pd.DataFrame({"n": [0]})

    def produce() -> Iterator[pd.DataFrame]:
        for n in range(5):
            frame.loc[0, "n"] = n
            yield frame

    ours.extend(produce())
    assert ours.batch().column(0).to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (pd.DataFrame({"n": [1]}), "lacks the columns x, s, at, dec, list"),
        (pd.DataFrame([[1, 2]]), "has 2 columns, but the output has 6"),
        (frame_of(1).assign(n=["one", "two"]), "n object"),
        (frame_of(1).assign(n=[1.5, 2.5]), "column 'n'"),
        (frame_of(1).assign(dec=[1, 2]), "dec"),
    ],
)
def test_a_frame_that_does_not_fit_is_named(bad: pd.DataFrame, message: str) -> None:
    ours = output()
    ours.extend([frame_of(n) for n in range(3)])
    ours.extend([bad])
    with pytest.raises(ProcessorError, match="batch 4") as raised:
        ours.batch()
    assert message in str(raised.value)


def test_settings_of_the_output() -> None:
    loose = output(replace(SETTINGS, safecheck=False))
    loose.extend([frame_of(1).assign(n=[1.5, 2.5])])
    assert loose.batch().column(0).to_pylist() == [1, 2]
    by_position = output(replace(SETTINGS, assign_by_name=False))
    by_position.extend([frame_of(1)[OUTPUT.names].set_axis(list("abcdef"), axis=1)])
    assert by_position.batch().column(0).to_pylist() == [1, 2]


def test_whole_numbers_for_a_decimal() -> None:
    decimals = output(replace(SETTINGS, int_to_decimal=True))
    decimals.extend([frame_of(1).assign(dec=[1, 2])])
    assert decimals.batch().column(4).to_pylist() == [1, 2]
    refused = output(replace(SETTINGS, int_to_decimal=False))
    refused.extend([frame_of(1).assign(dec=[12345, 2])])
    # Spark's words, which its own tests and users' programs search for.
    with pytest.raises(ProcessorError, match="Failed to convert the value of the column 'dec'"):
        refused.batch()
    refused.clear()
    refused.extend([frame_of(1).assign(dec=["a", "b"])])
    with pytest.raises(ProcessorError, match="Cannot convert the output value of the column 'dec'"):
        refused.batch()


def test_output_other_than_a_frame_is_rejected() -> None:
    with pytest.raises(ProcessorError, match=r"it yields a Series: write `yield pd\.DataFrame"):
        output().extend([pd.Series([1])])
    assert output().batch().num_rows == 0


def test_a_number_is_exact_whatever_other_keys_have() -> None:
    exact = 2**53 + 1
    keys = pa.array([0, 1, 1, 0, 2])
    values = pa.array([exact, None, 5, exact + 2, None])
    table = pa.table({"key": keys, "value": values})
    frames = {key[0]: frames[0]["value"] for key, _, frames in all_keys(read(table, [0], SETTINGS))}
    assert ("int64", [exact, exact + 2]) == (str(frames[0].dtype), frames[0].tolist())
    assert ["float64", "float64"] == [str(frames[key].dtype) for key in (1, 2)]
    assert (True, 5.0) == (np.isnan(frames[1][0]), frames[1][1])
