"""
Take the rows of a task from Spark without waiting for TCP.

Spark sends the rows to a worker over a TCP connection of the host, in pieces, and at last a few
bytes that say there are no more.  While a piece is not acknowledged, TCP holds a small one back
(Nagle's algorithm); and it acknowledges up to 40 ms late, in the hope of data to send along with it
(delayed acknowledgement).  A worker that only reads sends none, so about half of the tasks waited
40 ms for their last bytes.  Only the sender can turn the first off, and that is Spark's; so the
worker acknowledges at once here, and sends its own rows at once.

Source: RFC 896; RFC 1122, 4.2.3.2; TCP_QUICKACK and TCP_NODELAY in tcp(7) (Linux).  SPARK-51667 is
the same between Spark's own stateful workers and their state.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

_OPEN_FILES: Final = "/dev/fd"
_HOST_ITSELF: Final = ("127.", "::1", "::ffff:127.")
_ACKNOWLEDGE: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
"""The option exists on Linux only; elsewhere nothing is changed."""


def without_delay(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Yield the batches of a task, and have each received at once.

    It concerns all connections of this process to its own host, of which Spark's is one.
    """
    acknowledge = _ACKNOWLEDGE
    if acknowledge is None:
        yield from batches
        return
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connection) for connection in _connections()]
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        iterator = iter(batches)
        while True:
            # Before each read, as Linux forgets it.  It acknowledges what has come so far, too.
            for connection in connections:
                connection.setsockopt(socket.IPPROTO_TCP, acknowledge, 1)
            batch = next(iterator, None)
            if batch is None:
                return
            yield batch


def _connections() -> Iterator[socket.socket]:
    """Yield a socket for each connection of this process to its own host; the caller closes it."""
    seen = set[int]()
    for name in os.listdir(_OPEN_FILES):
        # It may be closed meanwhile, as the folder itself is.
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode) or status.st_ino in seen:
                continue
            seen.add(status.st_ino)
            # A duplicate: closing it must not close Spark's own connection.
            connection = socket.socket(fileno=os.dup(int(name)))
            if _is_to_own_host(connection):
                yield connection
            else:
                connection.close()


def _is_to_own_host(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    if connection.type != socket.SOCK_STREAM:
        return False
    try:
        peer = connection.getpeername()[0]
    except OSError:  # it listens
        return False
    return str(peer).startswith(_HOST_ITSELF)
