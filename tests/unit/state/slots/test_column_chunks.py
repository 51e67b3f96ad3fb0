"""Columns that grow, against lists of Python values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statelog.state.slots import column_chunks
from statelog.state.slots.column_chunks import ColumnChunks

ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.text("aä", max_size=9)), st.one_of(st.none(), st.integers(0, 9))
    ),
    max_size=20,
)
TYPES = [pa.string(), pa.int64()]


def columns_of(rows: list[tuple[str | None, int | None]]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(TYPES)]


def rows_of(columns: list[pa.Array]) -> list[tuple[str | None, int | None]]:
    assert TYPES == [column.type for column in columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@given(st.data(), st.lists(ROWS, max_size=8), st.sampled_from([1, 40, 1 << 30]))
def test_rows_are_found_by_number_and_kept(
    data: st.DataObject, batches: list[list[tuple[str | None, int | None]]], most_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_chunks, "_CHUNK_BYTES", most_bytes)
        chunks, model = ColumnChunks(TYPES), []
        for rows in batches:
            chunks.append(columns_of(rows))
            model += rows
        assert len(chunks) == len(model)
        asked = data.draw(st.lists(st.integers(-2, len(model) - 1)))
        wanted = [model[at] if at >= 0 else (None, None) for at in asked]
        assert wanted == rows_of(chunks.take(np.array(asked, np.int64)))
        kept = chunks.kept(np.array(asked, np.int64))
        assert wanted == rows_of(kept.take(np.arange(len(asked))))
        assert len(kept) == len(asked)
        assert model == rows_of(chunks.take(np.arange(len(model))))


def test_no_chunk_becomes_longer_than_a_column_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_chunks, "_CHUNK_BYTES", 1000)
    chunks = ColumnChunks([pa.string()])
    for _ in range(50):
        chunks.append([pa.array(["x" * 100] * 3)])
    kept = chunks.kept(np.arange(150)[::-1])
    for one in (chunks, kept):
        sizes = [part[0][0].nbytes for part in one.parts(np.arange(150))]
        assert max(sizes) <= 1000
        assert ["x" * 100] * 150 == one.take(np.arange(150))[0].to_pylist()


def test_many_small_batches_are_in_few_chunks() -> None:
    chunks = ColumnChunks([pa.int64()])
    for start in range(0, 5000, 10):
        chunks.append([pa.array(range(start, start + 10))])
        assert len(chunks.parts(np.arange(len(chunks)))) < 12
    assert list(range(5000)) == chunks.take(np.arange(5000))[0].to_pylist()
