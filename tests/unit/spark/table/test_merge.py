"""Which of several rows of one key counts, and which cannot be chosen."""

import math
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from statelog.errors import UsageError
from statelog.spark.table import commit
from statelog.spark.table.commit import changes_of
from statelog.spark.table.options import TableColumns, TableOptions
from statelog.spark.table.parts import GROUP_COLUMN
from statelog.state.encoding.changes import OperatorCodec

FRAME = StructType(
    [
        StructField("id", DoubleType()),
        StructField("version", LongType()),
        StructField("text", StringType()),
    ]
)


def merged(rows: list[tuple[Any, Any, Any]], *, sequence: str | None = "version") -> dict[Any, Any]:
    """Return the text of the row of each key that counts."""
    given = {"path": "memory://table", "key": "id"}
    columns = TableColumns.of(
        FRAME, TableOptions.parse(given if sequence is None else given | {"sequenceBy": sequence})
    )
    ids, versions, texts = zip(*rows, strict=True)
    table = pa.table(
        {
            GROUP_COLUMN: pa.array([0] * len(rows), pa.int32()),
            "id": pa.array(ids, pa.float64()),
            "version": pa.array(versions, pa.int64()),
            "text": pa.array(texts, pa.string()),
        }
    )
    codec = OperatorCodec(columns.schema)
    changes, count = changes_of([table], columns, codec)
    reader = codec.reader()
    reader.schema_is(codec.metadata_change())
    read = reader.batches(changes.key_groups.tolist(), changes.values.to_pylist())
    batches = [batch for parts in read.values() for _, batch in parts]
    result = {}
    for batch in batches:
        for row in batch.to_pylist():
            result[repr(row["key.id"])] = row["value.text"]
    assert count == len(result)
    return result


def test_the_greatest_of_the_sequence_counts() -> None:
    rows = [(1.0, 2, "b"), (1.0, 1, "a"), (2.0, None, "x"), (2.0, 1, "y"), (1.0, 2, "b")]
    assert {"1.0": "b", "2.0": "y"} == merged(rows)


def test_both_zeros_are_one_key() -> None:
    assert {"0.0": "b"} == merged([(-0.0, 1, "a"), (0.0, 2, "b")])
    assert {"0.0": "a"} == merged([(-0.0, 2, "a"), (0.0, 1, "b")])


def test_rows_that_the_sequence_does_not_order_are_named() -> None:
    with pytest.raises(UsageError) as raised:
        merged([(1.0, 3, "a"), (1.0, 3, "b"), (2.0, 1, "a"), (2.0, 2, "b"), (2.0, 2, "b")])
    text = str(raised.value)
    assert "several different rows with the key (1.0,) and version 3; version does not" in text
    with pytest.raises(UsageError, match="each of 7 keys") as raised:
        merged([(float(at), 3, text) for at in range(7) for text in "ab"])
    text = str(raised.value)
    assert "each of 7 keys: (0.0,) and version 3; (1.0,) and version 3; " in text
    assert "(4.0,) and version 3; and 2 more; version does not order them" in text
    assert "(5.0,)" not in text


def test_a_tie_of_three_is_seen_where_the_first_differs() -> None:
    with pytest.raises(UsageError, match=r"the key \(1.0,\) and version 3"):
        merged([(1.0, 3, "a"), (1.0, 3, "b"), (1.0, 3, "b")])


def test_without_a_sequence_rows_have_to_be_equal() -> None:
    assert {"1.0": "a"} == merged([(1.0, 3, "a"), (1.0, 3, "a")], sequence=None)
    with pytest.raises(UsageError, match=r"each of 2 keys: \(1.0,\); \(2.0,\); set the option"):
        rows = [(1.0, 3, "a"), (1.0, 4, "a"), (2.0, 3, "a"), (2.0, 4, "a"), (3.0, 1, "a")]
        merged(rows, sequence=None)


def test_nulls_and_then_nans_are_the_oldest_without_a_warning() -> None:
    parents = np.array([1, 0, 1, 1, 0, 1], np.int64)
    sequence = pa.array([2.0, 5.0, math.nan, None, -1.0, -math.inf])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = commit._in_sequence(parents, sequence)
        whole = commit._in_sequence(parents, pa.array([2, 5, 1, None, -1, 0]))
    assert order.tolist() == [4, 1, 3, 2, 5, 0]
    assert whole.tolist() == [4, 1, 3, 5, 2, 0]
