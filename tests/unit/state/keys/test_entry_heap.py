"""A column that grows, against a list of Python values."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.state.keys import entry_heap
from statelog.state.keys.entry_heap import ChunkedColumn

TEXTS = st.lists(st.none() | st.text("aä", max_size=9), max_size=20)
LISTS = st.lists(st.none() | st.lists(st.integers(0, 9), max_size=4), max_size=20)
TYPES = st.sampled_from([(pa.string(), TEXTS), (pa.list_(pa.int64()), LISTS)])


@given(st.data(), TYPES, st.sampled_from([1, 40, 1 << 30]))
def test_rows_are_found_by_number_and_kept(data, typed, most_bytes):
    kind, values = typed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_heap, "_CHUNK_BYTES", most_bytes)
        column, model = ChunkedColumn(kind), []
        for chunk in data.draw(st.lists(values, max_size=8)):
            column.append(pa.array(chunk, kind))
            model += chunk
        assert len(column) == len(model)
        assert pa.array(model, kind) == column.take(np.arange(len(model)))
        asked = data.draw(st.lists(st.integers(-2, len(model) - 1)))
        expected = pa.array([model[row] if row >= 0 else None for row in asked], kind)
        assert expected == column.take(np.array(asked, np.int64))
        column.keep(np.array(asked, np.int64))
        assert len(column) == len(asked)
        assert expected == column.take(np.arange(len(asked)))
        column.append(pa.array(model, kind))
        assert pa.array(model, kind) == column.take(len(asked) + np.arange(len(model)))


def test_no_chunk_becomes_longer_than_a_column_may_be(monkeypatch):
    monkeypatch.setattr(entry_heap, "_CHUNK_BYTES", 1000)
    column = ChunkedColumn(pa.string())
    for _ in range(50):
        column.append(pa.array(["x" * 100] * 3))
    for _ in range(2):
        assert max(chunk.nbytes for chunk, _, _ in column.parts(np.arange(150))) <= 1000
        assert ["x" * 100] * 150 == column.take(np.arange(150)).to_pylist()
        column.keep(np.arange(150)[::-1])


def test_many_small_batches_are_in_few_chunks():
    column = ChunkedColumn(pa.int64())
    for start in range(0, 5000, 10):
        column.append(pa.array(range(start, start + 10)))
        assert len(column.parts(np.arange(len(column)))) < 12
    assert list(range(5000)) == column.take(np.arange(5000)).to_pylist()
