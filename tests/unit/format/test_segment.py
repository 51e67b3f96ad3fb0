"""Round trips and damage: what is written is read, and what is damaged is never read as data."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.reference_log import canonical
from tests.support.values.change_set_reader import iterate_change_set

import statelog as sl
from statelog import changelog as cl
from statelog.format.change_set import decode_change_set, group_index
from statelog.format.change_set_encoder import encode_change_set
from statelog.format.segment import SegmentWriter, parse_segment
from statelog.model import ChangeBatch
from statelog.model.state_change import ChangeRows
from statelog.store import open_store

GOLDEN = Path(__file__).parents[2] / "golden"

some_changes = st.lists(
    st.tuples(st.integers(-1, 32767), st.binary(max_size=40)).map(
        lambda pair: cl.StateChange(*pair)
    ),
    max_size=30,
)
even_changes = st.integers(1, 20).flatmap(
    lambda length: st.lists(
        st.tuples(st.integers(-1, 5), st.binary(min_size=length, max_size=length)).map(
            lambda pair: cl.StateChange(*pair)
        ),
        min_size=1,
        max_size=30,
    )
)
lone_changes = st.dictionaries(
    st.integers(-1, 40), st.binary(max_size=40), min_size=12, max_size=30
).map(lambda values: [cl.StateChange(*pair) for pair in values.items()])
"""Key groups with one change each; beyond 16 they are decoded in columns."""
any_changes = some_changes | even_changes | lone_changes
sets = st.lists(any_changes, min_size=1, max_size=4)


def batches_of(changes: list[cl.StateChange], cuts: list[int], wide: bool) -> list[ChangeBatch]:
    bounds = sorted({0, len(changes), *(cut % (len(changes) + 1) for cut in cuts)})
    kind = pa.large_binary() if wide else pa.binary()
    return [
        ChangeBatch(
            np.array([change.key_group for change in changes[start:end]], np.int32),
            pa.array([change.value for change in changes[start:end]], kind),
        )
        for start, end in pairwise(bounds)
    ]


def file_of(content: list[list[cl.StateChange]], compress: bool) -> tuple[bytes, list[tuple[int]]]:
    segment = SegmentWriter(compress=compress)
    places = [(segment.add(batches_of(changes, [], False)).offset,) for changes in content]
    return b"".join(bytes(piece) for piece in segment.finish()), places


def changes_in(batch: pa.RecordBatch) -> list[cl.StateChange]:
    return [cl.StateChange(row["key_group"], row["value"]) for row in batch.to_pylist()]


def handle_on(data: bytes, places: list[tuple[int, ...]]) -> cl.ChangelogStateHandle:
    """Return a handle on change sets of a file; a place is an offset, or also a size and checksum."""
    stream = cl.ByteStreamStateHandle("file", data)
    return cl.ChangelogStateHandle(
        key_group_range=sl.KeyGroupRange(0, 32767),
        handles_and_offsets=tuple(cl.HandleAndOffset(stream, *place) for place in places),
        size_bytes=0,
        incremental_size_bytes=0,
        state_handle_id="test",
    )


STORE = open_store("memory://property")


large_changes = st.dictionaries(
    st.integers(-1, 40), st.sampled_from([0, 1, 5000, 9000, 30_000]), min_size=1, max_size=30
).map(lambda sizes: [cl.StateChange(key, bytes([key % 7]) * size) for key, size in sizes.items()])


@given(
    changes=any_changes | large_changes,
    cuts=st.lists(st.integers(0, 30), max_size=3),
    wide=st.booleans(),
)
def test_a_set_reads_back(changes, cuts, wide):
    encoded = encode_change_set(batches_of(changes, cuts, wide))
    payload = b"before" + b"".join(bytes(piece) for piece in encoded.buffers) + b"after"
    decoded = decode_change_set(payload, len(b"before"), size_bytes=encoded.size_bytes)
    assert len(b"before") + encoded.size_bytes == decoded.end
    assert canonical(changes) == canonical(decoded.batch)
    assert encoded.groups == group_index(decoded.batch)
    assert list(iterate_change_set(payload, len(b"before"))) == list(decoded.batch)


@pytest.mark.parametrize("repeats", [1, 500])
@pytest.mark.parametrize("lengths", [(0, 20), (20, 0), (0, 0), (0, 7), (20, 20), (20, 24)])
def test_batches_may_have_different_lengths(lengths, repeats):
    changes = [
        cl.StateChange(number % 2, bytes(length)) for length in lengths for number in range(repeats)
    ]
    encoded = encode_change_set(batches_of(changes, [repeats], False))
    decoded = decode_change_set(b"".join(bytes(piece) for piece in encoded.buffers), 0)
    assert canonical(changes) == canonical(decoded.batch)
    assert encoded.groups == group_index(decoded.batch)


@given(content=sets, compress=st.booleans())
def test_a_file_reads_back_set_by_set(content, compress):
    data, places = file_of(content, compress)
    read = [canonical(cl.read_changes(STORE, handle_on(data, [place]))) for place in places]
    assert [canonical(changes) for changes in content] == read


@given(content=sets, start=st.integers(0, 32767), length=st.integers(0, 100))
def test_other_key_groups_are_dropped_and_metadata_never(content, start, length):
    key_groups = sl.KeyGroupRange(start, min(start + length, 32767))
    data, places = file_of(content, False)
    batches = cl.read_change_batches(STORE, handle_on(data, places), key_groups)
    expected = [
        canonical(change for change in changes if change[0] == -1 or change[0] in key_groups)
        for changes in content
    ]
    assert expected == [canonical(changes_in(batch)) for batch in batches]


def damaged(data: bytes, draw: st.DataObject) -> bytes:
    kind = draw.draw(st.sampled_from(["flip", "truncate", "extend", "overwrite"]), label="damage")
    position = draw.draw(st.integers(0, max(0, len(data) - 1)), label="position")
    if kind == "flip":
        mask = draw.draw(st.integers(1, 255), label="mask")
        return data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]
    if kind == "truncate":
        return data[:position]
    noise = draw.draw(st.binary(min_size=1, max_size=12), label="noise")
    if kind == "extend":
        return data + noise
    return data[:position] + noise + data[position + len(noise) :]


@given(content=sets, compress=st.booleans(), data=st.data())
def test_a_damaged_file_of_ours_is_refused_or_reads_the_same(content, compress, data):
    whole, _ = file_of(content, compress)
    segment = parse_segment(whole)
    assert segment.trailer is not None
    places = [(entry.offset, entry.size_bytes, entry.crc32c) for entry in segment.trailer.sets]
    handle = handle_on(damaged(whole, data), places)
    try:
        read = [canonical(changes_in(batch)) for batch in cl.read_change_batches(STORE, handle)]
    except (sl.CorruptionError, sl.IncompatibleFormatError):
        return
    assert [canonical(changes) for changes in content] == read


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.dstl")))
@given(data=st.data())
def test_a_damaged_file_of_flink_raises_nothing_unexpected(name, data):
    whole = (GOLDEN / name).read_bytes()
    manifest = json.loads((GOLDEN / name.replace(".dstl", ".json")).read_text())
    places = [(change_set["offset"],) for change_set in manifest["changeSets"]]
    handle = handle_on(damaged(whole, data), places)
    for read in (cl.read_changes, cl.read_change_batches):
        try:
            list(read(STORE, handle))
        except (sl.CorruptionError, sl.IncompatibleFormatError):
            continue  # plain files of Flink have no checksum, so other values are possible too


def test_few_changes_that_are_large_are_decoded_in_columns():
    batch = [ChangeBatch(np.array([1, 2], np.int32), pa.array([b"x" * 70_000, b"y"], pa.binary()))]
    encoded = encode_change_set(batch)
    decoded = decode_change_set(b"".join(encoded.buffers), 0)
    assert not isinstance(decoded.batch, ChangeRows)
    assert list(batch[0]) == list(decoded.batch)


@given(st.lists(st.tuples(st.integers(-1, 300), st.binary(max_size=20)), min_size=1, max_size=64))
def test_rows_and_columns_have_the_same_bytes(changes):
    groups, values = zip(*changes, strict=True)
    rows = encode_change_set([ChangeRows(groups, values)])
    columns = ChangeBatch(np.array(groups, np.int32), pa.array(values, pa.binary()))
    in_columns = encode_change_set([columns])
    assert b"".join(rows.buffers) == b"".join(in_columns.buffers)
    assert (rows.size_bytes, rows.crc32c) == (in_columns.size_bytes, in_columns.crc32c)
    assert rows.groups == in_columns.groups
    mixed = encode_change_set([ChangeRows(groups, values), columns])
    both = decode_change_set(b"".join(mixed.buffers), 0).batch
    expected = sorted((*changes, *changes), key=lambda change: change[0])
    assert expected == list(map(tuple, both))
