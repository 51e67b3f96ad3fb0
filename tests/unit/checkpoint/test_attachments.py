"""The log of attachments: small objects are joined, items are dropped by age, objects are bounded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.checkpoint.attachments import (
    Addition,
    Attachment,
    AttachmentLog,
    AttachmentPolicy,
    in_force,
)
from statelog.errors import StoreError
from statelog.format.buffers import checksum
from statelog.model.handles import FileStateHandle

AGE_MS = 100


@dataclass(frozen=True)
class Words:
    """Words with a space after each."""

    words: tuple[bytes, ...]

    def joined(self, skip: int, later: Words) -> Words | None:
        both = self.words[skip:] + later.words
        return Words(both) if len(both) <= 12 else None

    def encode(self) -> bytes:
        return b"".join(word + b" " for word in self.words)


def policy(**changes: Any) -> AttachmentPolicy:
    """Return the policy of words; an answer of a task has several with a space between them."""
    default = AttachmentPolicy(
        kind="words",
        what="words",
        path_of=lambda name: f"output/{name}",
        contents=lambda sent: Words(tuple(word for part in sent for word in part.split())),
        age_ms=AGE_MS,
        tail_bytes=40,
    )
    return replace(default, **changes)


@dataclass
class Job:
    """Commits micro-batches with a log; *objects* are what the store has."""

    policy: AttachmentPolicy = field(default_factory=policy)
    objects: dict[str, bytes] = field(default_factory=dict)
    named: tuple[Attachment, ...] = ()
    checkpoint_id: int = 0
    is_full: bool = False

    def __post_init__(self) -> None:
        self.log = AttachmentLog(self.policy, self.put)

    def put(self, path_of: Callable[[str], str], data: bytes) -> FileStateHandle:
        if self.is_full:
            raise StoreError("the store is full")
        path = path_of(str(len(self.objects)))
        self.objects[path] = data
        return FileStateHandle(path, len(data), checksum([data]))

    def file(self, *words: str) -> Addition:
        """Return words that a task wrote to an object."""
        data = Words(tuple(word.encode() for word in words)).encode()
        return Addition(file=self.put(self.policy.path_of, data), count=len(words))

    def run(self, *additions: Addition, at_ms: int = 0, commits: bool = True) -> None:
        named = self.log.entries(self.named, additions, self.checkpoint_id + 1, at_ms)
        if commits:
            self.checkpoint_id += 1
            self.named = named
            self.log.committed()

    def words(self, named: Sequence[Attachment] | None = None) -> list[str]:
        """Return what is in the objects that a checkpoint names, checked against their entries."""
        words = []
        for entry in self.named if named is None else named:
            data = self.objects[entry.path]
            assert (entry.size, entry.crc) in ((len(data), checksum([data])), (len(data), None))
            assert entry.count == len(data.split())
            words += data.decode().split()
        return words


def sent(words: str, name: str = "", **named: Any) -> Addition:
    return Addition(data=(words.encode(),), count=len(words.split()), name=name, **named)


def test_small_objects_of_one_place_are_joined():
    job = Job()
    job.run(sent("a"), sent("b", name="other"), sent("c"))
    job.run(sent("d", name="other"))
    job.run()
    assert [("", 1, 1, 2), ("other", 1, 2, 2)] == [
        (entry.name, entry.oldest, entry.newest, entry.count) for entry in job.named
    ]
    assert ["a", "c", "b", "d"] == job.words()
    assert not any(entry.is_fresh for entry in job.named)
    job.run(sent("e"))
    assert [("other", False), ("", True)] == [(entry.name, entry.is_fresh) for entry in job.named]
    assert ["b", "d", "a", "c", "e"] == job.words()


def test_an_object_that_is_large_or_cannot_be_joined_is_not_written_again():
    job = Job(policy(tail_bytes=8))
    for word in ("aaa", "bbb", "ccc", "ddddddddddd", "e"):
        job.run(sent(word))
    assert [2, 1, 1, 1] == [entry.count for entry in job.named]
    assert ["aaa", "bbb", "ccc", "ddddddddddd", "e"] == job.words()
    many = Job(policy(tail_bytes=1000))
    for _ in range(3):
        many.run(sent("a b c d e f g"))
    assert [7, 7, 7] == [entry.count for entry in many.named]


def test_an_object_has_items_of_about_the_same_age():
    job = Job(policy(span_ms=10))
    for at_ms in (0, 5, 10, 11, 21, 22):
        job.run(sent(f"w{at_ms}"), at_ms=at_ms)
    assert [3, 2, 1] == [entry.count for entry in job.named]


def test_items_are_dropped_by_age_also_out_of_an_object_that_grows():
    job = Job()
    for at_ms in range(0, 300, 30):
        job.run(sent(f"w{at_ms}"), at_ms=at_ms)
        young = [time_ms for time_ms in range(0, at_ms + 1, 30) if time_ms > at_ms - AGE_MS]
        assert [f"w{time_ms}" for time_ms in young] == job.words()
    job.run(at_ms=270 + AGE_MS)
    assert () == job.named


def test_objects_of_a_failed_commit_are_not_joined():
    job = Job()
    job.run(sent("a"))
    job.run(sent("lost"), commits=False)
    job.run(sent("b"))
    assert ["a", "b"] == job.words()
    job.is_full = True
    with pytest.raises(StoreError):
        job.run(sent("c"))
    job.is_full = False
    job.run(sent("c"))
    assert ["a", "b", "c"] == job.words()
    assert [(1, 3)] == [(entry.oldest, entry.newest) for entry in job.named]


def test_an_optional_object_may_be_left_out(caplog):
    job = Job(policy(is_required=False, tail_bytes=0))
    job.run(sent("a"))
    file = job.file("written", "before")
    job.is_full = True
    job.run(sent("lost"), file)
    assert ["a", "written", "before"] == job.words()
    assert "checkpoint 2 will not contain words: the store is full" in caplog.text


def test_objects_of_tasks_are_named_and_may_end_the_order():
    for is_ordered, expected in ((False, ["b", "a", "c"]), (True, ["a", "b", "c"])):
        job = Job(policy(is_ordered=is_ordered))
        job.run(sent("a"))
        job.run(job.file("b"))
        job.run(sent("c"))
        assert expected == job.words()


def test_objects_of_earlier_batches_are_bounded(caplog):
    caplog.set_level(logging.WARNING)
    job = Job(policy(objects_max=2))
    job.run(job.file("a", "b"))
    job.run(job.file("c"))
    job.run(job.file("d"))
    assert ["c", "d"] == job.words()
    assert (
        "2 words of checkpoint 1 and earlier were dropped, because a location stores" in caplog.text
    )
    job.run(*(job.file(str(number)) for number in range(3)))
    assert ["0", "1", "2"] == job.words()
    few = Job(policy(checkpoints_max=2, tail_bytes=0))
    for number in range(4):
        few.run(sent(f"w{number}"), few.file(f"f{number}"))
    assert ["w2", "f2", "w3", "f3"] == few.words()


def test_an_info_is_without_zeros_and_a_checksum_may_be_left_out():
    job = Job(policy(has_checksum=True))
    job.run(sent("a", info={"dropped": 2, "late": 0}), sent("b"))
    (entry,) = job.named
    assert ({"dropped": 2}, None, -1) == (entry.info, entry.crc, entry.handle.size_bytes)


def test_the_newest_of_each_name_is_in_force():
    def version(name: str, checkpoint: int) -> Attachment:
        return Attachment(
            kind="table", name=name, oldest=checkpoint, newest=checkpoint,
            path=f"{name}-{checkpoint}", size=1, count=1, at_ms=0,
        )  # fmt: skip

    versions = [version("b", 4), version("a", 2), version("a", 3), version("a", 7)]
    newest = in_force(versions).items()
    assert {"a": "a-7", "b": "b-4"} == {name: entry.path for name, entry in newest}
    assert ["a-3"] == [entry.path for entry in in_force(versions, 3).values()]


BATCH = st.tuples(
    st.lists(st.tuples(st.sampled_from(["x", "y"]), st.integers(1, 4), st.booleans()), max_size=3),
    st.integers(0, 60),
    st.booleans(),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(BATCH, max_size=25), st.sampled_from([0, 12, 40]), st.booleans())
def test_a_checkpoint_names_each_young_item_once(batches, tail_bytes, is_ordered):
    job = Job(policy(tail_bytes=tail_bytes, is_ordered=is_ordered))
    expected: list[tuple[int, str]] = []
    now_ms = 0
    for number, (parts, step_ms, commits) in enumerate(batches):
        now_ms += step_ms
        additions, words = [], []
        for place, (name, count, is_file) in enumerate(parts):
            new_words = [f"{number}.{place}.{index}" for index in range(count)]
            words += new_words
            file = replace(job.file(*new_words), name=name)
            additions.append(file if is_file else sent(" ".join(new_words), name=name))
        job.run(*additions, at_ms=now_ms, commits=commits)
        if commits:
            expected += [(now_ms, word) for word in words]
        named = job.words()
        assert len(named) == len(set(named))
        committed_ms = now_ms if commits else now_ms - step_ms
        young = {word for at_ms, word in expected if at_ms > committed_ms - AGE_MS}
        if commits:
            assert young | set(words) <= set(named) <= {word for _, word in expected}
