"""The memory of this process and of those it started: Spark's JVM and its Python workers."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

KINDS = ("jvm", "driver", "workers")
_WORKER_KINDS = ("RssAnon", "RssFile", "local")


def resident_mib() -> dict[str, float]:
    """
    Return the resident size of each kind of process in MiB, Linux only.

    `driver` is this process, `jvm` all of Java, `workers` the largest Python worker.
    """
    found = dict.fromkeys(KINDS, 0.0)
    for process in (os.getpid(), *descendants(os.getpid())):
        try:
            kind = _kind_of(Path(f"/proc/{process}"))
            pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
        except (OSError, IndexError, ValueError):
            continue
        mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        if process == os.getpid():
            found["driver"] = mib
        elif kind == "jvm":
            found["jvm"] += mib
        elif kind == "workers":
            found["workers"] = max(found["workers"], mib)
    return {kind: round(mib, 1) for kind, mib in found.items()}


def threads_and_open_files() -> dict[str, int]:
    """Return how many threads and open files this process, Spark's JVM and the Python workers have, Linux only."""
    found = {"threads": 0, "open_files": 0}
    for process in (os.getpid(), *descendants(os.getpid())):
        folder = Path(f"/proc/{process}")
        with contextlib.suppress(OSError):  # it has ended
            if process == os.getpid() or _kind_of(folder) is not None:
                found["threads"] += len(os.listdir(folder / "task"))
                found["open_files"] += len(os.listdir(folder / "fd"))
    return found


def _kind_of(process: Path) -> str | None:
    """Return the kind of a process of Spark by its command, None for any other."""
    command = (process / "cmdline").read_bytes()
    if command.split(b"\0")[0].endswith(b"java"):
        return "jvm"
    return "workers" if b"pyspark" in command else None


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


class WorkerMemory:
    """
    Samples the memory of the Python workers in a thread, until it is closed; Linux only.

    `RssAnon` and `RssFile` are the largest of any worker, anonymous and of files.  `local` is the size of
    the state files that all workers together have mapped; these have no names, so a listing of the folder
    does not show them.

    Args:
        folder: Where the workers have such files.
        seconds: Between two samples.
    """

    def __init__(self, folder: Path | None = None, *, seconds: float = 0.1) -> None:
        self._folder, self._seconds = folder, seconds
        self._peak = dict.fromkeys(_WORKER_KINDS, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def take(self) -> dict[str, int]:
        """Return the peaks in MiB since the last call."""
        peak, self._peak = self._peak, dict.fromkeys(_WORKER_KINDS, 0)
        return {name: kib // 1024 for name, kib in peak.items()}

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds):
            mapped: dict[str, int] = {}
            for process in descendants(os.getpid()):
                # It may end meanwhile.
                with contextlib.suppress(OSError, ValueError):
                    self._look(Path(f"/proc/{process}"), mapped)
            self._peak["local"] = max(self._peak["local"], sum(mapped.values()) // 1024)

    def _look(self, process: Path, mapped: dict[str, int]) -> None:
        if _kind_of(process) != "workers":
            return
        for line in (process / "status").read_text(encoding="utf-8").splitlines():
            name, _, rest = line.partition(":")
            if name in self._peak:
                self._peak[name] = max(self._peak[name], int(rest.split()[0]))
        if self._folder is not None:
            mapped.update(_mapped_files(process, self._folder))

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()


def _mapped_files(process: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each file of a folder that a process has mapped, by device and inode, and how many bytes."""
    sizes: dict[str, int] = {}
    for line in (process / "maps").read_text(encoding="utf-8").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(str(folder)):
            start, end = (int(one, 16) for one in fields[0].split("-"))
            file = f"{fields[3]} {fields[4]}"
            sizes[file] = sizes.get(file, 0) + end - start
    yield from sizes.items()
