"""The connection between Spark and a worker while the worker takes its rows."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest

from statelog.spark.worker import task_input
from statelog.spark.worker.task_input import without_delay

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only has TCP_QUICKACK")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection: as a worker has it, and as Spark has it."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = stack.enter_context(socket.create_connection(listening.getsockname()))
        theirs, _ = listening.accept()
        stack.enter_context(theirs)
        yield ours, theirs


def option(end: socket.socket, name: int) -> int:
    return end.getsockopt(socket.IPPROTO_TCP, name)


def late(end: socket.socket) -> None:
    """Let a socket acknowledge late, as Linux does on its own after some traffic."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)


def batch(value: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"a": [value]})


def test_each_batch_is_acknowledged_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    during = []

    def batches() -> Iterator[pa.RecordBatch]:
        for value in range(3):
            during.append(option(ours, socket.TCP_QUICKACK))
            late(ours)
            yield batch(value)
        during.append(option(ours, socket.TCP_QUICKACK))

    late(ours)
    assert option(ours, socket.TCP_QUICKACK) == 0
    assert [batch.column(0)[0].as_py() for batch in without_delay(batches())] == [0, 1, 2]
    assert during == [1, 1, 1, 1]


def test_output_is_sent_without_delay(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    assert option(ours, socket.TCP_NODELAY) == 0
    assert list(without_delay([])) == []
    assert option(ours, socket.TCP_NODELAY) != 0


def test_only_the_connection_stays_open(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    before = len(os.listdir("/dev/fd"))
    assert len(list(without_delay([batch(1), batch(2)]))) == 2
    assert len(os.listdir("/dev/fd")) == before
    taken = without_delay([batch(1), batch(2)])
    next(taken)
    taken.close()  # as by a task that stops reading
    assert len(os.listdir("/dev/fd")) == before
    ours.sendall(b"x")
    assert theirs.recv(1) == b"x"


def test_other_sockets_are_left_alone() -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        for end in socket.socketpair():
            stack.enter_context(end)
        assert list(without_delay([batch(1)])) == [batch(1)]
        assert option(listening, socket.TCP_NODELAY) == 0


def test_where_the_system_lacks_the_option_the_batches_are_unchanged(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, _ = pair
    monkeypatch.setattr(task_input, "_ACKNOWLEDGE", None)
    assert list(without_delay([batch(1)])) == [batch(1)]
    assert option(ours, socket.TCP_NODELAY) == 0
