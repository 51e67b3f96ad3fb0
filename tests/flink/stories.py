"""
What the writers of a job do from start to end, made from a seed, and what their handles then hold.

A story is carried out by statelog's storage here, or by Flink's in its JVM (`flink_lines`); what
the handles of each checkpoint must hold is said by the story alone.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from tests.flink.flink import encoded

from statelog.changelog import FsStateChangelogStorage
from statelog.model import METADATA_KEY_GROUP, ChangelogStateHandle, KeyGroupRange, StateChange
from statelog.model.key_group import split_key_groups

VALUE_BYTES_MAX = 64 * 1024
CHECKPOINTS = 4
TURNS_MAX = 4
PATIENCE_S = 60

Changes = list[StateChange]


class Append(NamedTuple):
    writer: int
    changes: Changes


class Cut(NamedTuple):
    writer: int


class Persist(NamedTuple):
    checkpoint_id: int


class End(NamedTuple):
    """How a checkpoint ended: confirm or reset; materialize after a confirm."""

    how: str


Step = Append | Cut | Persist | End


@dataclass
class Story:
    """
    The steps of some writers over a few checkpoints.

    Args:
        seed: Says everything.
        ranges: Key groups of each writer.
        steps: What happens, in order.
        held: (checkpoint, writer) to the change sets that this handle holds.
    """

    seed: int
    ranges: tuple[KeyGroupRange, ...] = ()
    steps: list[Step] = field(default_factory=list)
    held: dict[tuple[int, int], list[Changes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        writers = chance.randint(2, 5)
        max_parallelism = chance.choice([writers, 128, 4096, 32768])
        self.ranges = split_key_groups(max_parallelism, writers)
        ended: list[list[Changes]] = [[] for _ in self.ranges]
        materialized = [0] * writers
        for checkpoint_id in range(1, CHECKPOINTS + 1):
            for writer, number in self._turns(chance, 2 if checkpoint_id == 1 else 0):
                changes = random_set(chance, self.ranges[writer]) if number else []
                self.steps += [Append(writer, changes), Cut(writer)]
                ended[writer] += [changes] if changes else []
            self.steps.append(Persist(checkpoint_id))
            for writer, sets in enumerate(ended):
                self.held[checkpoint_id, writer] = sets[materialized[writer] :]
            complete = checkpoint_id == CHECKPOINTS or chance.random() < 0.7
            self.steps.append(End("confirm" if complete else "reset"))
            if complete and chance.random() < 0.4:
                self.steps.append(End("materialize"))
                materialized = [len(sets) for sets in ended]

    def _turns(self, chance: random.Random, turns_min: int) -> list[tuple[int, int]]:
        """Return which writer cuts when in one checkpoint; number 0 cuts nothing."""
        turns = [
            (writer, number)
            for writer in range(len(self.ranges))
            for number in range(chance.randint(turns_min, TURNS_MAX))
        ]
        chance.shuffle(turns)
        return turns


def random_set(chance: random.Random, key_groups: KeyGroupRange) -> Changes:
    """Return the changes of one set, of a shape that the seed picks."""

    def data(size_max: int) -> StateChange:
        return StateChange(
            chance.randint(key_groups.start, key_groups.end), _value(chance, size_max)
        )

    def meta() -> StateChange:
        return StateChange(METADATA_KEY_GROUP, _value(chance, 300))

    shape = chance.choice(["meta", "one", "many", "wide", "large", "mixed"])
    if shape == "meta":
        return [meta() for _ in range(chance.randint(1, 3))]
    if shape == "one":
        return [data(VALUE_BYTES_MAX)]
    if shape == "many":
        return [data(40) for _ in range(chance.randint(1000, 4000))]
    if shape == "wide":
        numbers = chance.sample(list(key_groups), min(len(key_groups), 3000))
        return [StateChange(number, _value(chance, 8)) for number in numbers]
    if shape == "large":
        return [data(VALUE_BYTES_MAX) for _ in range(chance.randint(5, 15))]
    return [
        meta() if chance.random() < 0.1 else data(chance.choice([0, 100, 2000]))
        for _ in range(chance.randint(10, 300))
    ]


def _value(chance: random.Random, size_max: int) -> bytes:
    """Return 0 to *size_max* bytes, both ends often, of which Snappy likes about half."""
    size = chance.choice([0, size_max, chance.randint(0, size_max), chance.randint(0, size_max)])
    if chance.random() < 0.5:
        return chance.randbytes(size)
    word = chance.randbytes(7)
    return (word * (size // len(word) + 1))[:size]


def in_file_order(changes: Changes) -> Changes:
    """
    Return the order that statelog gives a set: metadata first, then groups ascending.

    Two lists are alike in this order if they agree in all that Flink promises: the order within each
    key group.
    """
    return sorted(changes, key=lambda change: change.key_group)


def difference(expected: Sequence[Changes], found: Sequence[Changes]) -> str:
    """Return "" or the first difference in a line: pytest's own would be megabytes long."""
    if len(expected) != len(found):
        return f"{len(found)} lists of changes instead of {len(expected)}"
    for number, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        for position, (one, other) in enumerate(zip(wanted, got, strict=False)):
            if one != other:
                return f"list {number}, change {position}: {_short(other)} instead of {_short(one)}"
        if len(wanted) != len(got):
            return f"list {number}: {len(got)} changes instead of {len(wanted)}"
    return ""


def _short(change: StateChange) -> str:
    start = change.value[:16].hex()
    return f"key group {change.key_group}, {len(change.value)} bytes {start}..."


def tell(
    story: Story, storage: FsStateChangelogStorage
) -> dict[tuple[int, int], ChangelogStateHandle]:
    """Carry *story* out with statelog; return the handles by checkpoint and writer."""
    chance = random.Random(story.seed)
    writers = [storage.create_writer(f"operator-{i}", r) for i, r in enumerate(story.ranges)]
    begins = [writer.initial_sequence_number() for writer in writers]
    ends, checkpoint_id = list(begins), 0
    handles: dict[tuple[int, int], ChangelogStateHandle] = {}
    for step in story.steps:
        match step:
            case Append(number, changes):
                _append(writers[number], changes, chance)
            case Cut(number):
                writers[number].next_sequence_number()
            case Persist(checkpoint_id):
                ends = [writer.next_sequence_number() for writer in writers]
                futures = [
                    writer.persist(begin, checkpoint_id)
                    for writer, begin in zip(writers, begins, strict=True)
                ]
                for number, future in enumerate(futures):
                    handle = future.result(PATIENCE_S).job_manager_owned
                    assert handle is not None
                    handles[checkpoint_id, number] = handle
            case End("materialize"):
                for writer, end in zip(writers, ends, strict=True):
                    writer.truncate(end)
                begins = ends
            case End(how):
                for writer, begin, end in zip(writers, begins, ends, strict=True):
                    getattr(writer, how)(begin, end, checkpoint_id)
    return handles


def _append(writer: Any, changes: Changes, chance: random.Random) -> None:
    """Append one by one, or in columns as far as there is no metadata between."""
    columns = chance.random() < 0.5
    start = 0
    while start < len(changes):
        if changes[start].key_group == METADATA_KEY_GROUP:
            writer.append_meta(changes[start].value)
            start += 1
            continue
        end = start + 1
        while columns and end < len(changes) and changes[end].key_group != METADATA_KEY_GROUP:
            end += 1
        if columns:
            values = pa.array([change.value for change in changes[start:end]], pa.binary())
            writer.append_batch([change.key_group for change in changes[start:end]], values)
        else:
            writer.append(*changes[start])
        start = end


def flink_lines(story: Story, options: dict[str, str]) -> Iterator[str]:
    """Say *story* to `FlinkChangelog write`."""
    for key, value in options.items():
        yield f"option {key} {value}"
    for key_groups in story.ranges:
        yield f"writer {key_groups.start} {key_groups.end}"
    for step in story.steps:
        match step:
            case Append(writer, changes):
                for key_group, value in changes:
                    if key_group == METADATA_KEY_GROUP:
                        yield f"meta {writer} {encoded(value)}"
                    else:
                        yield f"append {writer} {key_group} {encoded(value)}"
            case Cut(writer):
                yield f"cut {writer}"
            case Persist(checkpoint_id):
                yield f"persist {checkpoint_id}"
            case End(how):
                yield how
