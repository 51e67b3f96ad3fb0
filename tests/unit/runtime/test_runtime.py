"""Timers, locks and fail points: what callbacks, signals and a system without threads do to them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.processes.no_threads import WAIT_S, NoThreads

from statelog.errors import InvalidOptionsError, UnavailableError
from statelog.runtime.clock import SystemClock
from statelog.runtime.fail_points import parse_fail_points
from statelog.runtime.lock import ReentrantThreadLock, ThreadLock
from statelog.runtime.runtime import ThreadTimers


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_no_error_of_a_callback_ends_the_timers(kind):
    clock = SystemClock()
    timers, fired = ThreadTimers(clock), threading.Event()

    def raises() -> None:
        raise kind

    timers.schedule(clock.now_ns(), raises)
    timers.schedule(clock.now_ns() + 1, fired.set)
    assert fired.wait(WAIT_S)
    timers.close()


def test_a_timer_is_kept_until_the_system_has_a_thread(monkeypatch):
    clock, system = SystemClock(), NoThreads(monkeypatch)
    timers, first, second = ThreadTimers(clock), threading.Event(), threading.Event()
    with pytest.raises(UnavailableError, match="can't start new thread"):
        timers.schedule(clock.now_ns(), first.set)
    system.refusing = False
    timers.schedule(clock.now_ns(), second.set)
    assert first.wait(WAIT_S)
    assert second.wait(WAIT_S)
    timers.close()


class Interrupt(BaseException):
    """What the handler raises."""


@pytest.fixture
def handler() -> Iterator[None]:
    def handle(number: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("handler")
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


SOURCES = Path(__file__).parents[3] / "src"


@pytest.mark.parametrize(
    ("armed", "status", "said"),
    [
        ("here:3", -signal.SIGKILL, "0\n1\n2\n"),
        ("here:6", 0, "0\n1\n2\n3\n4\n"),
        ("elsewhere:1", 0, "0\n1\n2\n3\n4\n"),
        ("", 0, "0\n1\n2\n3\n4\n"),
    ],
)
def test_only_the_hit_that_is_armed_kills(armed, status, said):
    code = (
        "from statelog.runtime.fail_points import fail_point\n"
        "for index in range(5):\n"
        "    print(index, flush=True)\n"
        "    fail_point('here')\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "STATELOG_FAIL_POINTS": armed, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (status, said) == (died.returncode, died.stdout)


def test_several_points_may_be_armed():
    assert {"a": 1, "b": 20} == parse_fail_points("a:1, b:20")
    assert {} == parse_fail_points("")


@pytest.mark.parametrize("text", ["a", "a:0", ":1", "a:x"])
def test_nonsense_is_refused(text):
    with pytest.raises(InvalidOptionsError):
        parse_fail_points(text)
