"""
SIGKILL of a query with two stateful operators.

At each named point of a micro-batch, between the operators too, over both deliveries.  Both states and
every row must be as of a query that is left in peace, and each micro-batch one object.
`STATELOG_CHAOS_SEED=7 make chaos` tries another course; the seed is printed.
"""

import os
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.campaigns.chaos.chain_job import REGIONS
from tests.campaigns.chaos.kills import (
    DRIVER_POINTS,
    INLINE,
    NO_INLINE,
    SEED,
    WORKER_POINTS,
    Campaign,
)
from tests.support.project import evidence

from statelog.state.reader import StateReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DEATHS = 10
CASES = [("staged", INLINE, "auto"), ("staged", NO_INLINE, "disk"), ("direct", INLINE, "disk")]
POINTS = [*DRIVER_POINTS, "between-operators", *WORKER_POINTS]


@dataclass
class ChainCampaign(Campaign):
    """
    A series of kills of `chain_job.py` on one location.

    Args:
        batches: The output rows expected of each micro-batch.
    """

    files: int = 45
    batches: list[list[dict[str, Any]]] = field(default_factory=list)
    program: ClassVar = "chain_job.py"
    time_mode: ClassVar = "None"
    has_answer: ClassVar = False

    def write_input(self) -> None:
        chance = random.Random(self.seed)
        folder = self.folder / "input"
        folder.mkdir()
        self.accounts: dict[int, tuple[int, int]] = {}
        self.regions: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.changes: dict[int, int] = defaultdict(int)
        for number in range(self.files):
            # Every third file has the orders of one customer, who is far in the negative.
            few = number % 3 == 1
            orders = [
                (999, -1000) if few else (chance.randrange(40), chance.randint(1, 500))
                for _ in range(chance.randint(1, 30))
            ]
            columns = [pa.array(values) for values in zip(*orders, strict=True)]
            table = pa.table([columns[0].cast(pa.int32()), columns[1]], ["customer", "amount"])
            path = folder / f"{number:05}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_600_000_000 + number,) * 2)  # Spark takes files in this order
            self.batches.append(self.expect(orders))

    def expect(self, orders: list[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return what the query yields for the orders of one micro-batch."""
        for customer, amount in orders:
            total, count = self.accounts.get(customer, (0, 0))
            self.accounts[customer] = total + amount, count + 1
        touched = set()
        for customer in {customer for customer, _ in orders}:
            if self.accounts[customer][0] >= 0:
                region = customer % REGIONS
                self.regions[region][customer] = self.accounts[customer]
                self.changes[region] += 1
                touched.add(region)
        return [
            {
                "region": region,
                "customers": len(self.regions[region]),
                "changes": self.changes[region],
                "total": sum(total for total, _ in self.regions[region].values()),
            }
            for region in sorted(touched)
        ]

    def state(self) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        states: dict[str, list[dict[str, Any]]] = {}
        newest = -1
        for operator in ("customers", "regions"):
            with StateReader.open(self.location, operator=operator) as reader:
                newest = reader.checkpoint_id
                for name, table in reader.tables().items():
                    states[f"{operator}.{name}"] = table.to_pylist()
        return newest, states

    def check_output_and_state(self, verdict: dict[str, Any]) -> None:
        for batch_id, expected in enumerate(self.batches):
            path = self.folder / "output" / f"batch={batch_id}" / "rows.parquet"
            rows = pq.read_table(path).to_pylist() if path.exists() else []
            assert expected == rows, f"batch {batch_id}; {self.story}"
        _, states = self.state()
        accounts = {
            row["key.customer"]: (row["value.total"], row["value.orders"])
            for row in states["customers.account"]
        }
        assert self.accounts == accounts, self.story
        regions: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for row in states["regions.customers"]:
            customer = row["user_key.customer"]
            regions[row["key.region"]][customer] = row["value.total"], row["value.orders"]
        assert self.regions == regions, self.story
        changes = {row["key.region"]: row["value.changes"] for row in states["regions.changes"]}
        assert self.changes == changes, self.story


@pytest.mark.parametrize("case", range(len(CASES)), ids=["-".join(map(str, c)) for c in CASES])
def test_both_states_and_the_rows_are_exact_after_kills(case: int, tmp_path: Path) -> None:
    delivery, inline_bytes, backend = CASES[case]
    campaign = ChainCampaign(tmp_path, SEED + 40 + case, delivery, inline_bytes, backend)
    chance = campaign.chance
    print(f"\nseed {campaign.seed}")
    points = [*POINTS, *chance.sample(POINTS, DEATHS - len(POINTS))]
    chance.shuffle(points)
    name = "kills of a job with two operators"
    seeds = [campaign.seed]
    with evidence.campaign(
        name, "-".join(map(str, CASES[case])), seeds=seeds, spark=True
    ) as record:
        for point in points:
            campaign.die_at(point, chance.randint(1, 3))
        campaign.finish_while_workers_die(chance.choice(WORKER_POINTS))
        print(campaign.story)
        campaign.check({})
        campaign.record(record)
        record.commits = campaign.files
    assert len(campaign.kills) >= DEATHS, campaign.story
