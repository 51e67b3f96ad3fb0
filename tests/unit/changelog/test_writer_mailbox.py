"""With a mailbox, the callbacks of a writer's persists run on the thread of its owner."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from tests.support.changelogs import ALL, HeldScheduler, ScriptedStore, handle_of

import statelog as sl
from statelog import changelog as cl

Run = Callable[[], object]


def test_a_chain_of_persists_runs_on_the_owners_thread():
    """Flink's example: each continuation appends, and persists what it appended."""
    handles: list[cl.ChangelogStateHandle] = []
    threads: list[threading.Thread] = []
    with (
        cl.TaskMailbox() as mailbox,
        cl.FsStateChangelogStorage("memory://chain") as storage,
        storage.create_writer("op", sl.KeyGroupRange(0, 127), mailbox) as writer,
    ):

        def continued(future: Future[Any]) -> None:
            threads.append(threading.current_thread())
            handles.append(handle_of(future.result()))
            if len(handles) < 50:
                start = writer.next_sequence_number()
                writer.append(len(handles), b"continued")
                writer.persist(start, len(handles)).add_done_callback(continued)

        writer.append(0, b"first")
        writer.persist(0, 1).add_done_callback(continued)
        assert mailbox.run(lambda: len(handles) == 50, timeout_s=60)
        assert {threading.current_thread()} == set(threads)
        changes = [list(storage.read(handle)) for handle in handles]
        assert [[(0, b"first")], *([(group, b"continued")] for group in range(1, 50))] == changes


@pytest.fixture
def scheduler() -> HeldScheduler:
    """Return a scheduler in which a persist ends when the test says so."""
    return HeldScheduler()


@pytest.fixture
def storage(scheduler: HeldScheduler) -> Iterator[cl.FsStateChangelogStorage]:
    with cl.FsStateChangelogStorage(ScriptedStore(), scheduler=scheduler) as opened:
        yield opened


def test_the_mailbox_is_a_keyword_too_and_takes_any_executor(scheduler, storage):
    class Queue:
        def __init__(self) -> None:
            self.commands: list[Run] = []

        def execute(self, command: Run, description: str = "") -> None:
            self.commands.append(command)

    queue, ended = Queue(), []
    writer = storage.create_writer("op", ALL, mailbox=queue)
    writer.append(1, b"one")
    writer.persist(0).add_done_callback(ended.append)
    (task,) = scheduler.tasks
    task.fail(OSError("no"))
    assert ([], 1) == (ended, len(queue.commands))
    queue.commands[0]()
    assert isinstance(ended[0].exception(), cl.UploadFailedError)
    with pytest.raises(
        sl.UsageError, match=r"mailbox must be a MailboxExecutor.* does not have exec"
    ):
        storage.create_writer("op", ALL, print)


def test_an_error_of_a_callback_reaches_the_owner(scheduler, storage):
    def fail(_: object) -> None:
        raise RuntimeError("the state of the task is wrong")

    with cl.TaskMailbox() as mailbox:
        writer = storage.create_writer("op", ALL, mailbox)
        writer.append(1, b"one")
        writer.persist(0).add_done_callback(fail)
        (task,) = scheduler.tasks
        task.fail(OSError("no"))
        with pytest.raises(RuntimeError, match="state of the task") as raised:
            mailbox.run(lambda: False, timeout_s=60)
        assert "a callback of a persist" in raised.value.__notes__[0]


def test_a_callback_that_a_closed_mailbox_refuses_is_called_once(scheduler, storage):
    called = threading.Event()
    calls: list[object] = []
    mailbox = cl.TaskMailbox()
    writer = storage.create_writer("op", ALL, mailbox)
    writer.append(1, b"one")
    future = writer.persist(0)
    future.add_done_callback(lambda future: (calls.append(future), called.set()))
    mailbox.close()
    (task,) = scheduler.tasks
    task.fail(OSError("no"))
    assert called.wait(60)
    storage.close()
    assert [future] == calls


def test_a_callback_added_after_the_end_runs_at_once():
    with cl.TaskMailbox() as mailbox, cl.FsStateChangelogStorage(ScriptedStore()) as storage:
        writer = storage.create_writer("op", ALL, mailbox)
        writer.append(1, b"one")
        future, called = writer.persist(0), []
        future.result(60)
        future.add_done_callback(called.append)
        assert [future] == called
        assert 0 == mailbox.drain()
