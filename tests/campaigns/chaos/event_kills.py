"""
The kills of the job on event time, and the proof of what it did.

What comes out is compared three ways: with the same job left in peace, with a model in plain
Python, and with what holds of timers and late rows whatever the input.
"""

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow.parquet as pq
from tests.campaigns.chaos.event_model import Told, expect, make_events, write_events
from tests.campaigns.chaos.kills import DIES, DRIVER_POINTS, WORKER_POINTS, Campaign

from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries
from statelog.state.schema import TIMERS_NAME
from statelog.store import open_location


@dataclass
class EventCampaign(Campaign):
    """
    A series of kills of `event_job.py` on one location.

    Args:
        data_seed: Of the input; *seed* is that of the kills.
    """

    data_seed: int = 0
    kills_in_ticks: int = 0
    program: ClassVar = "event_job.py"
    time_mode: ClassVar = "EventTime"
    has_answer: ClassVar = False

    def write_input(self) -> None:
        self.parts = make_events(self.data_seed)
        self.expected = expect(self.parts)
        write_events(self.folder / "input", self.parts)

    def run_in_peace(self) -> None:
        with self._start(self._config(DIES, verify=False), "") as job:
            told = [message["event"] for message in job.events()]
        assert (told[-1], job.process.returncode) == ("finished", 0)

    def committed(self) -> int:
        """Return how many of the batches expected are committed."""
        newest = Entries(open_location(self.location)).newest()
        if newest is None:
            return 0
        batch_id = BatchRecord.of(newest).batch_id
        return 1 + len([batch for batch, _ in self.output() if batch < batch_id])

    def batches_left(self) -> int:
        return len(self.expected.batches) - self.committed()

    def hits_until(self, *, tick: bool) -> int:
        """Return which commit from now on is the next that is one of a tick, or of rows."""
        coming = self.expected.batches[self.committed() :]
        return 1 + [batch.is_tick for batch in coming].index(tick)

    def die_at(self, point: str, hit: int) -> None:
        super().die_at(point, hit)
        if self._newest_is_tick():
            self.kills_in_ticks += 1
            self.kills[-1] += " in a tick"

    def _newest_is_tick(self) -> bool:
        """Return whether the newest micro-batch that Spark planned reads no file."""
        folder = self.folder / "spark" / "offsets"
        newest = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        # A line for the version, one for the times, then one for each source: first the files.
        files = [
            json.loads((folder / str(batch)).read_text(encoding="utf-8").splitlines()[2])
            for batch in range(max(newest - 1, 0), newest + 1)
        ]
        return len(files) == 2 and files[0] == files[1]

    def output(self) -> list[tuple[int, list[Told]]]:
        """Return id and rows of each batch that lies in the sink with rows, tokens left out."""
        batches = []
        for path in (self.folder / "output").glob("batch=*/rows.parquet"):
            rows = pq.read_table(path).to_pylist()
            told = [Told(**{name: row[name] for name in Told._fields}) for row in rows]
            if told:
                batches.append((int(path.parent.name.partition("=")[2]), told))
        return sorted(batches)

    def check_output_and_state(self, verdict: dict[str, Any]) -> None:
        told = [rows for _, rows in self.output()]
        for number, (expected, rows) in enumerate(
            itertools.zip_longest(self.expected.batches, told, fillvalue=None)
        ):
            assert expected is not None, f"batch {number} is too many: {rows}; {self.story}"
            assert expected.rows == rows, f"batch {number}; {self.story}"
        self._check_rules([row for rows in told for row in rows])
        self.check_deliveries()
        self._check_state()

    def _check_state(self) -> None:
        """Check every variable of the newest checkpoint, customer by customer."""
        states: dict[str, dict[int, list[tuple[Any, ...]]]] = {}
        shown = ("user_key.", "value.", "fires_at_ms")
        for name, rows in self.state()[1].items():
            states[name] = {}
            for row in rows:
                values = tuple(cell for column, cell in row.items() if column.startswith(shown))
                states[name].setdefault(row["key.customer"], []).append(values)
        accounts = self.expected.accounts
        for customer, account in accounts.items():
            assert [tuple(account.counts)] == states["counts"][customer], self.story
            assert account.fired == states["fired"].get(customer, []), self.story
            pending = {time: (n, again) for time, n, again in states["pending"].get(customer, [])}
            assert account.pending == pending, self.story
            timers = [time for (time,) in states[TIMERS_NAME].get(customer, [])]
            assert sorted(account.pending) == timers, self.story
        assert all(rows.keys() <= accounts.keys() for rows in states.values()), self.story

    def _check_rules(self, told: Sequence[Told]) -> None:
        """Check each timer and each row by itself."""
        events = {event.n for part in self.parts for file in part for event in file}
        read = Counter(row.n for row in told if row.kind == "row")
        assert self.expected.late, "no row is late?"
        assert Counter(events - self.expected.late) == read, self.story
        fired = [row for row in told if row.kind != "row"]
        twice = [timer for timer, n in Counter((r.n, r.kind) for r in fired).items() if n > 1]
        assert [] == twice, self.story
        assert [] == [row for row in fired if row.time > row.watermark], self.story
        accounts = self.expected.accounts.values()
        registered, deleted = (
            sum(account.counts[place] for account in accounts) for place in (1, 2)
        )
        pending = sum(len(account.pending) for account in accounts)
        assert registered - deleted - pending == len(fired), self.story


def run_event_campaign(campaign: EventCampaign) -> None:
    """
    Let the driver die at each of its points, workers at three of theirs; finish and check.

    Over three seeds in a row each point of the driver comes once with rows and twice in a tick, and
    all points of the workers come.
    """
    chance, turn = campaign.chance, campaign.seed
    print(f"\nseed {campaign.seed}, data of {campaign.data_seed}")
    workers = [WORKER_POINTS[(turn + place) % len(WORKER_POINTS)] for place in range(3)]
    with_rows = DRIVER_POINTS[turn % len(DRIVER_POINTS)]
    points = [*DRIVER_POINTS, *workers[:2]]
    chance.shuffle(points)
    for point in points:
        if point in DRIVER_POINTS:
            hit = campaign.hits_until(tick=point != with_rows)
        else:
            hit = chance.randint(1, 3)
        campaign.die_at(point, hit)
    verdict = campaign.finish_while_workers_die(workers[2])
    print(campaign.story)
    campaign.check(verdict)
