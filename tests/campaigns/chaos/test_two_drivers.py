"""
Two drivers of one location that are paused, continued and killed at random, without Spark.

`STATELOG_CHAOS_SEED=7 make chaos` tries another course; the seed is printed.
"""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from tests.campaigns.chaos.two_drivers_job import Place, check_end, drive
from tests.campaigns.model.linearize import check_journal
from tests.support.project import evidence
from tests.support.servers.real_stores import seaweedfs_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SEED = int(os.environ.get("STATELOG_CHAOS_SEED", "20261"))
INTERLEAVINGS = int(os.environ.get("STATELOG_INTERLEAVINGS", "200"))
ROWS = 30
PAUSES, KILLS = 0.03, 0.004
"""Chances of a pause and of a death, before each request and after it."""
RUN_S = {"disk": 0.8, "SeaweedFS": 2.5}
"""For how long two drivers run, before one driver ends the job undisturbed; a server answers later."""
END_S = 60

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.campaigns.chaos.two_drivers_job"])


class Interleaving:
    """One course of two drivers on a new location."""

    def __init__(self, place: Place, seed: int, kills: Counter[str], run_s: float) -> None:
        self._place, self._kills, self._run_s = place, kills, run_s
        self._chance = random.Random(seed)
        self._drivers: list[BaseProcess] = []
        self._files: dict[BaseProcess, int] = {}

    def run(self) -> None:
        """Run two drivers against each other, then one to the end; check the history."""
        try:
            until = time.monotonic() + self._run_s
            while time.monotonic() < until:
                self._keep_two_running()
                self._strike(self._chance.choice(self._drivers))
                time.sleep(self._chance.uniform(0, 0.03))
            last = self._start(0.0, 0.0)
            for driver in self._drivers:
                self._send(driver, signal.SIGCONT)
            last.join(END_S)
            assert 0 == last.exitcode, f"the last driver: {last.exitcode}"
            self._end()
            checker = _processes.Process(target=check_end, args=(self._place,))
            checker.start()
            checker.join(END_S)
            assert 0 == checker.exitcode, f"{self._place.journal}: see above"
        finally:
            self._end()

    def _keep_two_running(self) -> None:
        self._drivers = [driver for driver in self._drivers if driver.is_alive()]
        while len(self._drivers) < 2:
            self._drivers.append(self._start(PAUSES, KILLS))

    def _start(self, pauses: float, kills: float) -> BaseProcess:
        arguments = (self._place, self._chance.getrandbits(32), ROWS, pauses, kills)
        driver = _processes.Process(target=drive, args=arguments)
        driver.start()
        assert driver.pid is not None
        # A file of the process, because its id may be another process's once it has ended.
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            self._files[driver] = os.pidfd_open(driver.pid)
        return driver

    def _strike(self, driver: BaseProcess) -> None:
        kinds = [signal.SIGCONT] * 8 + [signal.SIGSTOP] * 3 + [signal.SIGKILL]
        self._send(driver, self._chance.choice(kinds))

    def _send(self, driver: BaseProcess, kind: signal.Signals) -> None:
        file = self._files.get(driver)
        if file is None:
            return
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(file, kind)
            self._kills[kind.name] += 1

    def _end(self) -> None:
        for driver in self._drivers:
            driver.join(1)
        for driver, file in self._files.items():
            self._send(driver, signal.SIGKILL)
            driver.join(END_S)
            self._kills["killed"] += driver.exitcode == -signal.SIGKILL
            os.close(file)
        self._drivers, self._files = [], {}


@contextmanager
def on_disk(folder: Path) -> Iterator[Callable[[int], tuple[str, dict[str, Any]]]]:
    yield lambda number: (str(folder / f"job-{number}"), {})


@contextmanager
def on_seaweedfs(folder: Path) -> Iterator[Callable[[int], tuple[str, dict[str, Any]]]]:
    with seaweedfs_server() as server:
        server.make_bucket("drivers")
        yield lambda number: (f"s3://drivers/job-{number}", server.options)


@pytest.mark.parametrize("stores", [on_disk, on_seaweedfs])
def test_two_drivers_lose_and_double_no_row(stores: Any, tmp_path: Path) -> None:
    signals: Counter[str] = Counter()
    events: Counter[str] = Counter()
    print(f"\nseed {SEED}, {INTERLEAVINGS} interleavings")
    case, servers = "disk", []
    if stores is on_seaweedfs:
        case, servers = "SeaweedFS", [evidence.server("SeaweedFS")]
    seeds = range(SEED * 1000, SEED * 1000 + INTERLEAVINGS)
    with (
        evidence.campaign("two drivers", case, seeds=seeds, servers=servers) as record,
        stores(tmp_path) as location_of,
    ):
        for number in range(INTERLEAVINGS):
            url, options = location_of(number)
            place = Place(url, options, tmp_path / f"journal-{number}.jsonl")
            Interleaving(place, SEED * 1000 + number, signals, RUN_S[case]).run()
            for line in map(json.loads, place.journal.read_text().splitlines()):
                events[line["event"]] += 1
                if line["event"] == "failed":
                    events[f"failed: {line['kind']}: {line['error'][:150]}"] += 1
            record.counts["events of traces"] += check_journal(place.requests)
            record.counts["conforming traces"] += 1
            record.runs, record.kills = number + 1, signals["killed"]
            record.commits = events["committed"]
        record.counts.update(
            {"pauses by signal": signals["SIGSTOP"], "fenced drivers": events["fenced"]}
        )
    print(f"signals {dict(signals)}")
    print(f"events {json.dumps(events, indent=1)}")
    assert INTERLEAVINGS == events["checked"]
    assert events["fenced"] > 0
    assert signals["SIGSTOP"] > 0
    assert signals["SIGKILL"] > 0
