"""A system without threads, so that who waits does the work."""

from __future__ import annotations

import threading

import pytest

WAIT_S = 20.0


class NoThreads:
    """A system that refuses threads while `refusing` holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusing = True
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            if self.refusing:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse)
