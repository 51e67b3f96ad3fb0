"""What leads from one checkpoint to another: key groups by log, and those that are written again."""

import pytest
from tests.support.locations.histories import GROUPS, Calm, History, rows_of

from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.state.reader import LocationReader
from statelog.state.reader.checkpoint_chain import Changes
from statelog.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.campaign
EVERYTHING = KeyGroupRange(0, GROUPS - 1)


def test_lineage_is_decided_for_each_key_group():
    history = Calm("lineage", FaultyStore(), retained=5)
    for _ in range(5):
        history.micro_batch()
    state = LocationReader(history.store)
    first, last = (state.reader(number).checkpoint for number in (1, 4))
    assert Changes.of(first, last, EVERYTHING).rewritten == set()
    assert Changes.of(last, last, EVERYTHING).rewritten == set()
    touched = {kg for log in last.log if log.checkpoint_id > 1 for kg in log.key_group_range}
    assert Changes.of(last, first, EVERYTHING).rewritten == touched
    history.rewind(1)
    history.micro_batch()
    newest = LocationReader(history.store).reader().checkpoint
    assert Changes.of(last, newest, EVERYTHING).rewritten == touched
    assert Changes.of(first, newest, EVERYTHING).rewritten == set()


def test_key_groups_that_did_not_change_are_equal():
    unchanged = 0
    for seed in range(4):
        history = Calm(f"changed groups {seed}", FaultyStore(), retained=5)
        history.run(6)
        retained = list(history.expected)[-4:]
        newest = LocationReader(history.store).reader()
        for since, upto in ((0, 1), (0, 3), (2, 3), (3, 1)):
            # Both in one schema.
            before, after = (
                newest.of(checkpoint_of(history, retained[at])) for at in (since, upto)
            )
            changed = {kg for part in after.changed_groups(before.checkpoint) for kg in part}
            for group in set(EVERYTHING) - changed:
                unchanged += 1
                part = KeyGroupRange(group, group)
                tables = [
                    reader.tables(key_groups=part, include_expired=True)
                    for reader in (before, after)
                ]
                first, last = (
                    {name: rows_of(table) for name, table in by_name.items()} for by_name in tables
                )
                assert first == last, (seed, since, upto, group)
    assert unchanged > 5


def checkpoint_of(history: History, checkpoint_id: int) -> CompletedCheckpoint:
    return LocationReader(history.store).reader(checkpoint_id).checkpoint
