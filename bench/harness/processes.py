"""The memory of this process and of those it started: Spark's JVM and its Python workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

KINDS = ("jvm", "driver", "workers")


def resident_mib() -> dict[str, float]:
    """
    Return the resident size of each kind of process in MiB, Linux only.

    `driver` is this process, `jvm` all of Java, `workers` the largest Python worker.
    """
    found = dict.fromkeys(KINDS, 0.0)
    for process in (os.getpid(), *descendants(os.getpid())):
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, IndexError, ValueError):
            continue
        mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        if process == os.getpid():
            found["driver"] = mib
        elif command.split(b"\0")[0].endswith(b"java"):
            found["jvm"] += mib
        elif b"pyspark" in command:
            found["workers"] = max(found["workers"], mib)
    return {kind: round(mib, 1) for kind, mib in found.items()}


def descendants(root: int) -> Iterator[int]:
    """Yield the processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            yield child
            waiting.append(child)


class MemorySampler:
    """
    Samples the memory in a thread, until it is closed.

    Args:
        seconds: Between two samples.
    """

    def __init__(self, seconds: float = 0.5) -> None:
        self._peak = dict.fromkeys(KINDS, 0.0)
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def peak(self) -> dict[str, float]:
        """Return the highest sizes since the last call, in MiB."""
        found, self._peak = self._peak, dict.fromkeys(KINDS, 0.0)
        return found

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds):
            for kind, mib in resident_mib().items():
                self._peak[kind] = max(self._peak[kind], mib)

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()
