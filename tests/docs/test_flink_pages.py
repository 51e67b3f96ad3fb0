"""
What the pages for users of Flink say: the examples run, the map names what exists.

The usage examples of Flink's four pages, translated name by name, run as they are written there.
`docs/reference/flink-map.md` names each call of the pages that is different here, and why.
"""

import datetime as dt
import re
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from tests.house.sources import ROOT

import statelog as sl
from statelog import changelog as cl
from statelog.store import ObjectStore

ALL = sl.KeyGroupRange.of(0, 127)
EXAMPLES = (ROOT / "docs" / "how-to" / "flink-examples.md").read_text(encoding="utf-8")
MAP = (ROOT / "docs" / "reference" / "flink-map.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class MyUploader:
    """The custom uploader of the page, without the calls that only the scheduler may make."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.files = 0

    def upload(self, tasks: Sequence[cl.UploadTask]) -> cl.UploadTasksResult:
        offsets: dict[cl.UploadTask, dict[cl.StateChangeSet, tuple[int, int]]] = {}
        content = b"\x00"
        for task in tasks:
            for change_set in task.change_sets:
                offset = len(content) - 1
                offsets.setdefault(task, {})[change_set] = (offset, offset)
                content += encoded(change_set)
        self.files += 1
        path = f"mine/{self.files}"
        self.store.put(path, content)
        return cl.UploadTasksResult(offsets, cl.FileStateHandle(path, len(content) - 1))

    def discard(self, result: cl.UploadTasksResult) -> None:
        result.discard(self.store)

    def close(self) -> None:
        pass


def encoded(change_set: cl.StateChangeSet) -> bytes:
    """Return the bytes of one set, as Flink writes them."""
    from statelog.format.change_set_encoder import encode_change_set

    return b"".join(bytes(buffer) for buffer in encode_change_set(change_set).buffers)


def test_a_custom_uploader_makes_its_result_by_the_class_call():
    store = sl.open_store("memory://custom")
    scheduler = cl.StateChangeUploadScheduler.direct_scheduler(MyUploader(store))
    with cl.FsStateChangelogStorage(store, scheduler=scheduler) as storage:
        writer = storage.create_writer("op", ALL)
        handles = []
        for number in range(3):
            writer.append(number, b"change")
            handles.append(writer.persist(number).result(60).job_manager_owned)
        assert [[(each, b"change")] for each in range(3)] == [
            list(storage.read(handle)) for handle in handles if handle is not None
        ]


def test_the_result_of_several_tasks_is_made_as_in_flink():
    sets = [cl.StateChangeSet(0, sqn, [(sqn, b"abc")]) for sqn in range(3)]
    ends: list[int] = []
    tasks = [
        cl.UploadTask(sets[:1], lambda results: ends.append(len(results)), print),
        cl.UploadTask(sets[1:], lambda results: ends.append(len(results)), print),
    ]
    handle, local = cl.FileStateHandle("dstl/a", 30), cl.FileStateHandle("/local/a", 30)
    offsets: Any = {tasks[0]: {sets[0]: (0, 0)}, tasks[1]: {sets[1]: (10, 10), sets[2]: 20}}
    result = cl.UploadTasksResult(offsets, handle, local)
    assert ((handle,), 30) == (result.handles, result.state_size)
    entries = [each for task in result.tasks for each in task.results]
    assert [(handle, 0), (handle, 10), (handle, 20)] == [
        (entry.entry.handle, entry.entry.offset) for entry in entries
    ]
    assert [local] * 3 == [entry.local.handle for entry in entries if entry.local is not None]
    result.complete()
    assert [1, 2] == ends
    for wrong, text in (
        (
            {tasks[0]: {sets[0]: (0, 7)}},
            "offset of a set must be one offset, or the same offset twice",
        ),
        ({tasks[0]: {}}, "has no offset"),
        ([tasks[0]], "tasks_offsets must be a mapping of tasks"),
    ):
        with pytest.raises(sl.UsageError, match=text):
            cl.UploadTasksResult(wrong, handle)  # type: ignore[arg-type]
    with pytest.raises(sl.UsageError, match="followed by a handle"):
        cl.UploadTasksResult(offsets)


@pytest.mark.parametrize("delay", [0.01, dt.timedelta(milliseconds=10)])
def test_a_duration_is_seconds_or_a_timedelta(delay):
    assert cl.RetryPolicy.fixed(3, delay, delay) == cl.RetryPolicy.fixed(3, 0.01, 0.01)
    uploader = cl.StateChangeFsUploader("memory://durations")
    with cl.BatchingStateChangeUploadScheduler(
        uploader, batch_delay_s=delay, backpressure_timeout_s=delay
    ) as scheduler:
        assert scheduler.availability.wait(delay)


def test_many_small_writes_take_little_more_memory_than_their_bytes():
    store = sl.open_store("memory://small-writes")
    factory = cl.FsCheckpointStreamFactory(store, "chk-1", "shared", 0, 4096)
    number, piece = 100_000, b"0123456789"
    with factory.create_checkpoint_state_output_stream(cl.CheckpointedStateScope.SHARED) as stream:
        tracemalloc.start()
        for _ in range(number):
            stream.write(piece)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(stream._pieces) <= number * len(piece) // 4000
        handle = stream.close_and_get_handle()
    assert isinstance(handle, cl.FileStateHandle)
    assert bytes(store.get(handle.path)) == piece * number
    assert held < 1.2 * number * len(piece)


def sections() -> dict[str, list[str]]:
    parts = re.split(r"^## (.+)$", EXAMPLES, flags=re.MULTILINE)[1:]
    return {title: BLOCK.findall(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def test_every_section_has_code_that_checks_itself():
    assert EXAMPLES.count("```python") == sum(map(len, sections().values()))
    assert [] == [title for title, blocks in sections().items() if "assert " not in "".join(blocks)]


@pytest.mark.parametrize("title", sections())
def test_the_example_runs(title, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    for number, block in enumerate(sections()[title], 1):
        exec(compile(block, f"flink-examples.md, {title}, block {number}", "exec"), names)


def test_the_examples_use_public_names_only():
    used = set(re.findall(r"\bcl\.(\w+)", EXAMPLES))
    assert set() == used - set(cl.__all__)
    assert {"from statelog import changelog as cl"} == set(
        re.findall(r".*statelog import.*", EXAMPLES)
    )


def test_the_names_of_the_map_exist():
    rows = re.findall(r"^\| `(?:\w+)` \| `(\w+).*` .*\|$", MAP, re.MULTILINE)
    assert len(rows) > 20
    classes = {name for name in rows if name[0].isupper()}
    assert set() == (classes | set(re.findall(r"`cl\.(\w+)", MAP))) - set(cl.__all__)
    assert all((ROOT / file).is_file() for file in re.findall(r"`(tests/[\w/]+\.py)", MAP))


def test_every_call_that_differs_has_its_reason_in_the_map():
    section = MAP.split("## Other calls than on Flink's pages\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert 24 == len(rows)
    assert [] == [row for row in rows if not re.fullmatch(r"\| \S.* \| \S.* \|", row)]
