"""Run the program of an engine, and measure its processes: events by time, CPU seconds, memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.processes import descendants

_TICKS = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.25
_STOP_S = 10.0
_LEFT_OUT = 0.1
"""The share of the events at the start that does not count: engines warm up."""


@dataclass(slots=True)
class Watched:
    """
    What was seen of a program.

    Args:
        wall_s: Seconds from its start to its end.
        start_s: Seconds from its start to its first mark.
        events: Events that the marks cover, the first tenth left out.
        events_s: Seconds in which they were processed.
        cpu_s: CPU seconds of all its processes in this time.
        peak_mib: The highest resident size of all its processes together.
        code: Its exit code; None if it was ended at the limit.
    """

    wall_s: float = 0.0
    start_s: float = 0.0
    events: int = 0
    events_s: float = 0.0
    cpu_s: float = 0.0
    peak_mib: int = 0
    code: int | None = None
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Time, and CPU seconds up to it."""


def watch(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    limit_s: float,
    others: Sequence[int] = (),
) -> Watched:
    """
    Run a program to its end, or to the limit.

    Args:
        command: The program.
        environment: Its whole environment; `ELSEWHERE_MARKS` is where its marks are.
        log: Where its output goes.
        limit_s: After this time it is ended, with all its processes.
        others: Processes that work for it, such as a broker: their CPU time counts.
    """
    seen = Watched()
    used: dict[int, float] = {}
    began = time.time()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.time() - began < limit_s:
                _sample(seen, used, [process.pid, *descendants(process.pid), *others])
                time.sleep(_POLL_S)
        finally:
            seen.code = process.poll()
            _end(process)
    seen.wall_s = round(time.time() - began, 2)
    _count(seen, Path(environment["ELSEWHERE_MARKS"]), began)
    return seen


def _sample(seen: Watched, used: dict[int, float], processes: Sequence[int]) -> None:
    """Add the CPU time and the memory of the processes, which may end meanwhile."""
    pages = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError):
            text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
            fields = text[text.rindex(")") + 2 :].split()
            used[process] = (int(fields[11]) + int(fields[12])) / _TICKS
            pages += int(fields[21])
    seen.samples.append((time.time(), sum(used.values())))
    seen.peak_mib = max(seen.peak_mib, pages * os.sysconf("SC_PAGE_SIZE") >> 20)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started; all of them are in its session."""
    for number, wait_s in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, _STOP_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)


def _count(seen: Watched, marks: Path, began: float) -> None:
    """Set the events and seconds of *seen* from the marks of all processes."""
    steps: list[tuple[float, int]] = []
    for path in marks.iterdir():
        before = 0
        for line in path.read_text(encoding="ascii").splitlines():
            moment, events = line.split()
            steps.append((float(moment), int(events) - before))
            before = int(events)
    steps.sort()
    total = sum(events for _, events in steps)
    if total == 0:
        return
    seen.start_s = round(steps[0][0] - began, 2)
    covered = 0
    first: tuple[float, int] | None = None
    for moment, events in steps:
        covered += events
        if first is None and covered >= total * _LEFT_OUT:
            first = (moment, covered)
    assert first is not None
    last = steps[-1][0]
    seen.events = total - first[1]
    seen.events_s = round(last - first[0], 3)
    seen.cpu_s = round(_used_at(seen.samples, last) - _used_at(seen.samples, first[0]), 3)


def _used_at(samples: Sequence[tuple[float, float]], moment: float) -> float:
    """Return the CPU seconds up to a moment, between two samples in proportion."""
    for (before, used), (after, used_after) in itertools.pairwise(samples):
        if before <= moment <= after:
            return used + (used_after - used) * (moment - before) / (after - before)
    return samples[-1][1] if samples and moment > samples[-1][0] else samples[0][1]
