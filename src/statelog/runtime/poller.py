"""A thread that calls a function again and again, with a pause in between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger("statelog")


class Poller:
    """
    Calls *poll* on a daemon thread of its own, from the construction until `close`.

    Args:
        poll: Called without arguments; its errors are logged, and it is called again.
        interval_s: Seconds between the end of one call and the begin of the next; > 0.
        name: Name of the thread.

    Thread: `close` from any, also from *poll*.
    """

    def __init__(self, poll: Callable[[], object], interval_s: float, name: str) -> None:
        self._poll = poll
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._poll()
            except Exception:
                if not self._stopped.is_set():
                    _log.exception("%s: a call failed; the next one follows", self._thread.name)

    def close(self, timeout_s: float) -> bool:
        """
        Stop calling, and wait for a call under way; further calls do nothing.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether the thread has ended.

        Blocks: Up to *timeout_s*.
        """
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()
