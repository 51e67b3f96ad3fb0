"""Commands of a mailbox run on the thread of its owner, each once."""

import datetime as dt
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

import statelog as sl
from statelog import changelog as cl


def on_thread(work: Callable[[], object]) -> BaseException | None:
    """Do *work* on another thread; return what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="other")
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return raised[0] if raised else None


def test_commands_run_on_the_owners_thread_in_order():
    ran: list[tuple[int, threading.Thread]] = []

    def note(number: int) -> None:
        ran.append((number, threading.current_thread()))

    with cl.TaskMailbox() as mailbox:
        for number in range(5):
            command = partial(note, number)
            assert on_thread(partial(mailbox.execute, command)) is None
        assert 5 == len(mailbox)
        assert 5 == mailbox.drain()
        assert 0 == mailbox.drain()
    assert [(number, threading.current_thread()) for number in range(5)] == ran


def test_a_command_of_a_command_waits_for_the_next_drain():
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        mailbox.execute(lambda: ran.append("second"))

    with cl.TaskMailbox() as mailbox:
        mailbox.execute(first)
        assert 1 == mailbox.drain()
        assert ["first"] == ran
        assert 1 == mailbox.drain()
    assert ["first", "second"] == ran


def test_run_ends_with_the_future_or_the_condition_or_the_time():
    with cl.TaskMailbox() as mailbox:
        future: Future[None] = Future()
        timer = threading.Timer(0.01, future.set_result, (None,))
        timer.start()
        assert mailbox.run(future, timeout_s=60)
        ran: list[int] = []
        timer = threading.Timer(0.01, mailbox.execute, (lambda: ran.append(1),))
        timer.start()
        assert mailbox.run(lambda: bool(ran), timeout_s=dt.timedelta(minutes=1))
        assert not mailbox.run(lambda: False, timeout_s=0)
        assert not mailbox.run(Future(), timeout_s=0.01)
        assert mailbox.run(lambda: True)


def test_an_error_of_a_command_reaches_the_owner_and_keeps_the_others():
    def fail() -> None:
        raise ValueError("no")

    ran: list[int] = []
    mailbox = cl.TaskMailbox()
    mailbox.execute(fail, "the first mail")
    mailbox.execute(lambda: ran.append(1))
    with pytest.raises(ValueError, match="no") as raised:
        mailbox.drain()
    assert ["raised by a command of a mailbox: the first mail"] == raised.value.__notes__
    assert [] == ran
    mailbox.execute(fail)
    mailbox.execute(lambda: ran.append(2))
    with pytest.raises(ValueError, match="no"):
        mailbox.close()
    assert [1, 2] == ran


def test_a_closed_mailbox_refuses_commands():
    mailbox = cl.TaskMailbox()
    mailbox.close()
    mailbox.close()
    with pytest.raises(sl.ClosedError, match="its owner does not run further commands"):
        mailbox.execute(print)
    assert not mailbox.run(lambda: False)


def test_another_thread_runs_no_commands():
    mailbox = cl.TaskMailbox()
    mailbox.drain()
    calls: list[Callable[[], Any]] = [mailbox.drain, mailbox.close, lambda: mailbox.run(print)]
    for call in calls:
        error = on_thread(call)
        assert isinstance(error, sl.UsageError)
        assert "belongs to the thread 'MainThread'" in str(error)
    mailbox.close()
