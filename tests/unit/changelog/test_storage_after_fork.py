"""
A storage that a child inherits over a fork is refused in every call, and never hangs.

Each case is a process of its own, forks once for each call, and has a time limit.
"""

import pytest
from tests.support.processes.script import run_script

FORK = """
import os, sys, threading
import pyarrow as pa
import statelog as sl
from statelog import changelog as cl
from statelog.store import open_store
from tests.support.processes.forked_child import in_child

root, case = sys.argv[1:]
START = cl.SequenceNumber(0)
ALL = sl.KeyGroupRange(0, 9)
storage = cl.FsStateChangelogStorage(root, job_id="job")
writer = storage.create_writer("op", ALL)
writer.append(1, b"one")
handle = open_future = None
if case != "unused":
    result = writer.persist(START).result()
    handle = result.job_manager_owned
    writer.append(2, b"two")
    open_future = writer.persist(START)
    done_future = writer.persist(START)
    done_future.result()
held, go = threading.Event(), threading.Event()
if case == "locks held":
    def hold():
        runtime = storage._runtime
        with runtime.lock, runtime.upload_pool._changed, runtime.timers._changed:
            with open_future._condition, done_future._condition:
                held.set()
                go.wait(300)
    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(20)

calls = {
    "create_writer": lambda: storage.create_writer("op", ALL),
    "append": lambda: writer.append(1, b"x"),
    "append_meta": lambda: writer.append_meta(b"x"),
    "append_batch": lambda: writer.append_batch([1], pa.array([b"x"])),
    "next_sequence_number": lambda: writer.next_sequence_number(),
    "persist": lambda: writer.persist(START).result(),
    "confirm": lambda: writer.confirm(START, START, 1),
    "reset": lambda: writer.reset(START, START, 1),
    "truncate": lambda: writer.truncate(START),
    "truncate_and_close": lambda: writer.truncate_and_close(START),
    "writer.close": lambda: writer.close(),
    "close": lambda: storage.close(),
    "in_flight_bytes": lambda: storage.scheduler.in_flight_bytes,
    "registry": lambda: len(storage.registry),
}
if handle is not None:
    calls["read"] = lambda: list(storage.read(handle))
    calls["read_batches"] = lambda: list(storage.read_batches(handle))
    for name, future in (("open", open_future), ("done", done_future)):
        calls[f"{name}.result"] = lambda future=future: future.result()
        calls[f"{name}.result(1)"] = lambda future=future: future.result(1)
        calls[f"{name}.exception"] = lambda future=future: future.exception()
        calls[f"{name}.done"] = lambda future=future: future.done()
        calls[f"{name}.add_done_callback"] = lambda future=future: future.add_done_callback(print)
wrong = {}
for name, work in calls.items():
    said = in_child(work)
    if not (said.startswith("refused: ") and "fork" in said and "open a new" in said):
        wrong[name] = said
assert not wrong, wrong
go.set()
writer.append(3, b"three")  # the parent is none the worse
changes = list(storage.read(writer.persist(START).result().job_manager_owned))
assert sorted(change.value for change in changes)[0] == b"one", changes
storage.close()
"""


@pytest.mark.parametrize("case", ["used", "unused", "locks held"])
def test_an_inherited_storage_is_refused_in_every_call(tmp_path, case):
    run_script(FORK, str(tmp_path / "root"), case, timeout_s=250)


CHILD_OPENS = (
    FORK.split("root, case")[0]
    + """
root = sys.argv[1]
inherited = cl.FsStateChangelogStorage(root, job_id="parent")
def own():
    with cl.FsStateChangelogStorage(root, job_id="child") as storage:
        writer = storage.create_writer("op", sl.KeyGroupRange(0, 9))
        writer.append(1, b"one")
        handle = writer.persist(cl.SequenceNumber(0)).result().job_manager_owned
        return [change.value for change in storage.read(handle)]
said = in_child(own)
assert said == "worked: [b'one']", said
"""
)


def test_a_child_may_open_a_storage_of_its_own(tmp_path):
    run_script(CHILD_OPENS, str(tmp_path))
