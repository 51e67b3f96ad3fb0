"""What one Arrow array cannot hold is refused with its name, or split; the limit is small here."""

import random

import numpy as np
import pyarrow as pa
import pytest

from statelog.errors import CapacityError
from statelog.format import arrow_limits
from statelog.format.arrow_limits import (
    batches_of,
    check_size,
    joined_arrays,
    one_array,
    one_batch,
    rows_of,
    take_rows,
)

TEXT = pa.array(["x" * 20] * 3)
KINDS = {
    "text": TEXT,
    "binary": TEXT.cast(pa.binary()),
    "struct": pa.StructArray.from_arrays([TEXT], ["field"]),
    "list of texts": pa.array([["x" * 20]] * 3),
    "list of numbers": pa.array([[1] * 20] * 3),
    "map": pa.array([[("x" * 20, 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    "map of texts": pa.array([[(1, "x" * 20)]] * 3, pa.map_(pa.int64(), pa.string())),
}
"""Three values with 20 bytes or elements."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_limits, "ARRAY_BYTES", 100)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_several_chunks_is_one_array_up_to_the_limit(kind):
    values = KINDS[kind]
    assert 5 == len(one_array(pa.chunked_array([values, values[:2]])))
    with pytest.raises(CapacityError, match=r"^state 'total': one task has more .* GiB.*`tasks`"):
        one_array(pa.chunked_array([values, values]), "state 'total'")
    with pytest.raises(CapacityError):
        one_array(pa.concat_arrays([values, values]))
    with pytest.raises(CapacityError):
        joined_arrays([values, values])
    with pytest.raises(CapacityError, match="'total'"):
        take_rows(values, pa.array([0, 1, 2, 0, 1, 2]), "'total'")


@pytest.mark.usefixtures("small")
def test_numbers_and_wide_types_have_no_limit():
    numbers = pa.chunked_array([pa.array(range(1000))] * 2)
    assert 2000 == len(one_array(numbers))
    assert 6 == len(one_array(pa.chunked_array([TEXT.cast(pa.large_string())] * 2)))


def test_the_error_names_the_real_limit():
    assert "more than 2 GiB" in str(arrow_limits.capacity_error("the output"))


def test_types_that_differ_are_no_question_of_size():
    with pytest.raises(pa.ArrowInvalid):
        joined_arrays([pa.array([1]), pa.array(["x"])])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_becomes_as_many_batches_as_its_columns_need(kind):
    values = KINDS[kind]
    whole = pa.table({"n": list(range(12)), "value": pa.concat_arrays([values] * 4)})
    chunked = pa.concat_tables([whole.slice(0, 5), whole.slice(5)])
    for table in (whole, chunked):
        with pytest.raises(CapacityError, match="the rows, column 'value'"):
            one_batch(table, "the rows,")
        batches = batches_of(table)
        assert all(batch.num_rows <= 5 for batch in batches)
        assert all(column.offset == 0 for batch in batches for column in batch.columns)
        assert table.equals(pa.Table.from_batches(batches))
    assert 1 == len(batches_of(whole.slice(3, 4)))
    assert 1 == len(batches_of(whole.slice(0, 0)))


@pytest.mark.usefixtures("small")
def test_a_row_that_one_array_cannot_hold_is_refused():
    with pytest.raises(CapacityError, match="column 'text'"):
        batches_of(pa.table({"text": ["x", "y" * 101]}))
    with pytest.raises(CapacityError):
        check_size(101, "a change")
    check_size(100, "a change")


@pytest.mark.parametrize("limit", [100, 2**31 - 1])
def test_rows_are_taken_in_any_order(monkeypatch, limit):
    monkeypatch.setattr(arrow_limits, "ARRAY_BYTES", limit)
    rng = random.Random(7)
    for _ in range(50):
        texts = ["x" * rng.randrange(20) for _ in range(rng.randrange(1, 60))]
        table = pa.table({"n": list(range(len(texts))), "text": texts})
        cuts = sorted(rng.sample(range(len(texts)), rng.randrange(min(4, len(texts)))))
        chunks = [
            table.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(texts)], strict=True)
        ]
        rows = [rng.randrange(len(texts)) for _ in range(rng.randrange(100))]
        taken = rows_of(pa.concat_tables(chunks), np.array(rows, np.int64))
        assert rows == taken.column("n").to_pylist()
        assert [texts[row] for row in rows] == taken.column("text").to_pylist()
