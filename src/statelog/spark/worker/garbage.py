"""
Keep the garbage collector of a worker process away from what it would visit in vain.

Reference counts free the hundreds of thousands of objects of a task.  A pass of the collector over
them, over the modules or over the state takes as long as a small task or longer; and PySpark's
daemon runs a full collection after every task.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Final

_FULL: Final = 2
"""The generation of a full collection."""


class Garbage:
    """
    Disables the collector during tasks, and excludes long-lived objects from it.

    After a task it stays disabled until the collection of PySpark's daemon.  Python's own would
    visit all objects of the task, before the task's rows are sent.  Where no collection came before
    the next task, it is enabled at the end of each task from then on.

    An exclusion costs a collection of everything, excluded objects too: else unused cycles among
    these would never be deleted.  It is repeated once the later collections have lost as much time:
    each loses the difference to the shortest of them.

    Thread: one at a time; Spark runs one task in a Python worker.
    """

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s  # of this thread: other work of the host does not count
        self._in_task = False
        self._is_disabled = False
        self._daemon_collects = True
        self._is_due = True
        self._cost_s = 0.0
        self._is_first = True
        self._shortest_s = math.inf
        self._lost_s = 0.0
        self._began_s: float | None = None

    def begin_task(self) -> None:
        """Disable the collector, unless it is."""
        self._in_task = True
        if self._is_disabled:
            self._daemon_collects = False
        if gc.isenabled():
            self._is_disabled = True
            gc.disable()

    def end_task(self, *, has_daemon: bool) -> None:
        """Enable the collector if `begin_task` disabled it: now, or with the daemon's collection."""
        self._in_task = False
        if not (has_daemon and self._daemon_collects and self._watch in gc.callbacks):
            self._enable()

    def _enable(self) -> None:
        if self._is_disabled:
            self._is_disabled = False
            gc.enable()

    def require_exclusion(self) -> None:
        """Exclude at the end of the next task, because a state was added."""
        self._is_due = True

    def collect_everything(self) -> None:
        """Collect garbage among all objects; the end of the next task excludes them again."""
        gc.unfreeze()
        gc.collect()
        self._is_due = True

    def exclude(self) -> None:
        """Exclude all objects of this process, if it pays."""
        if not self._is_due and self._lost_s <= self._cost_s:
            return
        if self._watch not in gc.callbacks:
            gc.callbacks.append(self._watch)
        began_s = self._cpu_s()
        self.collect_everything()
        gc.freeze()
        self._cost_s = self._cpu_s() - began_s
        self._is_due = False
        self._is_first = True
        self._shortest_s = math.inf
        self._lost_s = 0.0

    def _watch(self, phase: str, info: Mapping[str, int]) -> None:
        """Measure a full collection; the collector calls this before and after each."""
        if info["generation"] < _FULL:
            return
        if phase == "start":
            if not self._in_task:
                self._enable()
            self._began_s = self._cpu_s()
        elif self._began_s is not None:
            self._add(self._cpu_s() - self._began_s)

    def _add(self, seconds: float) -> None:
        if self._is_first:  # right after the exclusion: the objects of the task are excluded too
            self._is_first = False
            return
        self._shortest_s = min(self._shortest_s, seconds)
        self._lost_s += seconds - self._shortest_s


GARBAGE: Final = Garbage()
"""For all tasks of this process."""
