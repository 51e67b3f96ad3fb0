"""Timers that survive what their callbacks raise, and a system that refuses threads."""

import threading

import pytest
from tests.support.processes.no_threads import WAIT_S, NoThreads

from statelog.errors import UnavailableError
from statelog.runtime.clock import SystemClock
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
