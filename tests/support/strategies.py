"""Checkpoints as Hypothesis draws them."""

from operator import itemgetter

from hypothesis import strategies as st

from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    FileStateHandle,
    HandleAndOffset,
    KeyGroupRange,
    MaterializedHandle,
    Timeline,
)
from statelog.model.checkpoint import TimelineEnd

KEY_GROUPS = 12
names = st.text("0123456789abcdef", max_size=16)
ends = st.builds(TimelineEnd, names, st.integers(0, 9), st.integers(0, 9))
timelines = st.builds(Timeline, names, st.integers(0, 9), st.lists(ends, max_size=3).map(tuple))


@st.composite
def ranges(draw) -> KeyGroupRange:
    start = draw(st.integers(0, KEY_GROUPS - 1))
    return KeyGroupRange(start, draw(st.integers(start, KEY_GROUPS - 1)))


@st.composite
def checkpoints(draw) -> CompletedCheckpoint:
    handles = st.tuples(st.integers(0, 9), ranges())
    log = sorted(draw(st.lists(handles, max_size=8)), key=itemgetter(0))
    snapshots = sorted(draw(st.lists(handles, max_size=5)), key=itemgetter(0))
    return CompletedCheckpoint(
        checkpoint_id=9,
        parent_id=8,
        created_at_ms=1,
        epoch=1,
        owner_id="o",
        max_parallelism=KEY_GROUPS,
        attempt=draw(names),
        timeline=draw(timelines),
        log=tuple(log_handle(i, number, key_groups) for number, (i, key_groups) in enumerate(log)),
        materialized=tuple(
            MaterializedHandle(key_groups, i, FileStateHandle(f"s{number}", 1))
            for number, (i, key_groups) in enumerate(snapshots)
        ),
    )


def log_handle(checkpoint_id, number, key_groups) -> ChangelogStateHandle:
    entry = HandleAndOffset(FileStateHandle(f"f{number}", 9), number, 4, 7)
    return ChangelogStateHandle(key_groups, (entry,), 4, 4, f"h{number}", checkpoint_id)
