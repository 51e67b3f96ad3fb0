"""
A store never hangs after a fork: in a child of a process that had used one it is refused.

Each case is a process of its own, forks once, and has a time limit.
"""

import os

import pytest
from tests.support.processes.script import run_script
from tests.support.servers.server_process import moto_server

FORK = """
import os, sys
from statelog.store import open_store
from tests.support.processes.forked_child import in_child

def use(store, name):
    store.put(name, b"x")
    store.put_if_absent(name + "-2", b"y")
    assert bytes(store.get(name)) == b"x"
    assert len(list(store.list())) >= 2
    store.delete([name, name + "-2"])

root, remote, case = sys.argv[1:]
place = remote or root
store = open_store(place)
if case == "unused":
    said = in_child(lambda: use(store, "child"))
    assert said == "worked: None", said
    use(store, "parent")  # the parent is none the worse
elif case == "grandchild":
    said = in_child(lambda: (use(store, "child"), in_child(lambda: use(store, "grandchild")))[1])
    said = said.removeprefix("worked: '")
    assert said.startswith("refused: "), said
else:
    use(store, "parent")
    new = {"inherited": lambda: store, "new": lambda: open_store(place),
           "other kind": lambda: open_store(root + "/other"),
           "memory": lambda: open_store("memory://fork")}[case]
    for work in (lambda store: use(store, "child"), lambda store: store.head("x") and None,
                 lambda store: list(store.list()) and None, lambda store: store.list_folders() and None,
                 lambda store: store.delete(["x"])):
        said = in_child(lambda: work(new()))
        assert said.startswith("refused: "), said
        assert "forked" in said and "start processes with spawn" in said and place.split(":")[0], said
    use(store, "parent again")
"""
CASES = ["unused", "grandchild", "inherited", "new", "other kind", "memory"]


def run(tmp_path, case, remote="", environment=None) -> None:
    arguments = (str(tmp_path / "job"), remote, case)
    run_script(FORK, *arguments, timeout_s=90, environment=environment)


@pytest.mark.parametrize("case", CASES)
def test_a_store_on_local_disk_is_refused_after_a_fork(tmp_path, case):
    run(tmp_path, case)


def test_a_store_in_memory_is_refused_after_a_fork(tmp_path):
    run(tmp_path, "inherited", "memory://fork")


def test_a_store_on_s3_is_refused_after_a_fork(tmp_path):
    with moto_server() as server:
        server.make_bucket("bucket")
        environment = {**os.environ, **server.environment}
        for case in CASES:
            run(tmp_path, case, "s3://bucket/job", environment)
