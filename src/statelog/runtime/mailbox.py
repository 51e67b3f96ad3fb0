"""
Mailboxes: a thread runs commands that other threads send to it.

A writer with a mailbox runs the callbacks of its persists there, so that a callback may use what
belongs to the owner's thread without a lock.
Source: Flink, MailboxExecutor, TaskMailbox and MailboxProcessor.  Deviations: the owner takes the
commands out itself; a command that a closed mailbox refuses is reported to its caller (H4).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar, runtime_checkable

from statelog.arguments import Seconds, given, refused, seconds
from statelog.errors import ClosedError, UsageError
from statelog.runtime.closing import ClosesAtExit, close_all
from statelog.runtime.lock import ThreadLock

Command = Callable[[], object]
T = TypeVar("T")

_LONGEST_WAIT_S: Final = 1e9
"""Longer waits would overflow the system's limit."""


@runtime_checkable
class MailboxExecutor(Protocol):
    """Runs commands later, one after another, on the thread of its owner."""

    def execute(self, command: Command, description: str = "") -> None:
        """
        Run *command* later, on the owner's thread.

        Must not wait, and must not run the command within this call on another thread.

        Thread: any.

        Raises:
            Exception: The command is refused, such as by a closed mailbox; it never runs.
        """
        ...


class TaskMailbox(ClosesAtExit):
    """
    A `MailboxExecutor` whose owner runs the commands with `drain` or `run`.

    The owner is the thread that first runs commands.
    """

    def __init__(self) -> None:
        self._changed = ThreadLock()
        self._commands: deque[tuple[Command, str]] = deque()
        self._owner: threading.Thread | None = None
        self._woken = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._commands)

    def execute(self, command: Command, description: str = "") -> None:
        """
        Run *command* on the owner's thread the next time the owner runs commands.

        Args:
            command: A function without arguments; its result is ignored.
            description: For the note on an error of the command.

        Thread: any.

        Raises:
            ClosedError: The mailbox is closed; the command never runs.
            UsageError: *command* is not a function.
        """
        if not callable(command):
            raise refused("command", "a function without arguments", command)
        with self._changed:
            if not self._closed:
                self._commands.append((command, description))
                self._changed.notify_all()
                return
        raise ClosedError("the mailbox is closed; its owner does not run further commands")

    def drain(self) -> int:
        """
        Run the waiting commands without waiting for more; return how many ran.

        A command that a command adds waits for the next call.

        Thread: the owner.

        Raises:
            Exception: What a command raised; the commands after it stay in the mailbox.
            UsageError: Another thread owns the mailbox.
        """
        self._check_owner()
        waiting = len(self._commands)
        for _ in range(waiting):
            self._run_first()
        return waiting

    def run(self, until: Callable[[], bool] | Future[T], timeout_s: Seconds | None = None) -> bool:
        """
        Run commands, waiting for more, until *until* is true or done.

        Args:
            until: A future that ends, or a function without arguments, called after each command.
            timeout_s: Longest time, in seconds or as a `timedelta`; None for no bound.

        Returns:
            False if the time is over, or the mailbox is closed and empty, before *until* holds.

        Blocks: At most *timeout_s*, and for the commands.   Thread: the owner.

        Raises:
            Exception: What a command raised; the commands after it stay in the mailbox.
            UsageError: Another thread owns the mailbox, or an argument is of the wrong type.
        """
        self._check_owner()
        limit_s = _LONGEST_WAIT_S
        if timeout_s is not None:
            limit_s = min(seconds(timeout_s, "timeout_s", low=0), _LONGEST_WAIT_S)
        deadline_s = time.monotonic() + limit_s
        holds = self._condition(until)
        while not holds():
            if self._commands:
                self._run_first()
            elif not self._wait(deadline_s):
                return holds()
        return True

    def close(self) -> None:
        """
        Run the waiting commands, and reject later ones.

        Every command runs, also after one that fails.  A second call does nothing.

        Thread: the owner.

        Raises:
            Exception: The first error of a command.
            UsageError: Another thread owns the mailbox.
        """
        self._check_owner()
        with self._changed:
            self._closed = True
            commands = list(self._commands)
            self._commands.clear()
            self._changed.notify_all()
        close_all(*(command for command, _ in commands))

    def _condition(self, until: Callable[[], bool] | Future[T]) -> Callable[[], bool]:
        """Return a function that checks *until*; if *until* is a future, it wakes the owner."""
        if isinstance(until, Future):
            Future.add_done_callback(until, self._wake)
            return until.done
        if not callable(until):
            raise refused("until", "a function without arguments, or a Future", until)
        return until

    def _wake(self, _: Future[T]) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _wait(self, deadline_s: float) -> bool:
        """Wait for a command, or for a future to complete; return False if neither happened."""
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._commands) or self._woken or self._closed,
                max(0.0, deadline_s - time.monotonic()),
            )
            woken = self._woken
            self._woken = False
            return bool(self._commands) or woken

    def _run_first(self) -> None:
        command, description = self._commands.popleft()
        try:
            command()
        except Exception as error:
            error.add_note(f"raised by a command of a mailbox: {description or given(command)}")
            raise

    def _check_owner(self) -> None:
        thread = threading.current_thread()
        if self._owner is None:
            self._owner = thread
        elif self._owner is not thread:
            raise UsageError(
                f"the mailbox belongs to the thread {self._owner.name!r}, which runs its commands; "
                f"{thread.name!r} may only call execute"
            )
