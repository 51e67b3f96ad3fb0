"""Run one piece of work in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def in_background(work: Callable[[], _T], name: str) -> Future[_T]:
    """
    Run *work* in a thread that does not keep the process alive.

    Args:
        work: What to run; its result or its error completes the future.
        name: Name of the thread.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
