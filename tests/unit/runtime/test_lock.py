"""The lock between threads, where a signal handler raises."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from statelog.runtime.lock import ReentrantThreadLock, ThreadLock

WAIT_S = 60


class Interrupt(BaseException):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def handle(number: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", [ThreadLock, ReentrantThreadLock])
def test_a_signal_while_a_waiter_acquires_the_lock_again(kind):
    lock = kind()
    waits = threading.Event()

    def notify() -> None:
        waits.wait(WAIT_S)
        with lock:
            lock.notify_all()
            time.sleep(0.1)  # the waiter is awake, and acquires the lock
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)

    thread = threading.Thread(target=notify)
    thread.start()
    with pytest.raises(Interrupt), lock:
        waits.set()
        lock.wait(WAIT_S)
    thread.join(WAIT_S)
    with lock:  # it was released
        pass
