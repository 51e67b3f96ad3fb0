"""Ranges of key groups, split among tasks."""

from hypothesis import given
from hypothesis import strategies as st

from statelog.model import KeyGroupRange


@given(start=st.integers(0, 50), count=st.integers(1, 300), parts=st.integers(1, 400))
def test_parts_share_all_key_groups(start: int, count: int, parts: int) -> None:
    whole = KeyGroupRange(start, start + count - 1)
    ranges = whole.split(parts)
    assert [group for part in ranges for group in part] == list(whole)
    assert len(ranges) == min(parts, count)
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
