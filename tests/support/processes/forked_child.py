"""Runs work in a forked child, for the programs that tests of forks start."""

import os
import signal
import time
from collections.abc import Callable

from statelog.errors import StoreError

ALARM_S = 30
LIMIT_S = 15


def in_child(work: Callable[[], object]) -> str:
    """Return what became of *work* in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(ALARM_S)  # the child ends even if the parent does not wait for it
        try:
            word = f"worked: {work()!r}"
        except StoreError as error:
            word = f"refused: {error}"
        except BaseException as error:
            word = repr(error)
        os.write(writer, word.encode())
        os._exit(0)
    os.close(writer)
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG)[0]:
            return os.read(reader, 10_000).decode()
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"
