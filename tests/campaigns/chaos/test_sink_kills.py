"""
SIGKILL between the delivery of a micro-batch and the record of its end, for every kind of sink.

`STATELOG_SINK_KILLS` is the number of kills over the three jobs (150).  A kill is counted for each query
that it found in a micro-batch, so one process that dies is as many kills as it had such queries: see
`sink_kills`.  `STATELOG_CHAOS_SEED=7 make chaos` tries another course.

Delta is a stand-in that writes Delta's commits without Delta's package; see `delta_stand_in`.  Kafka is
Tansu, whose records `kafka_reader` reads.  PostgreSQL is the real one.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.campaigns.chaos.sink_kills import BEFORE, BETWEEN, SinkCampaign
from tests.campaigns.chaos.sink_places import TRANSACTIONAL
from tests.support.project import evidence
from tests.support.servers.sink_servers import kafka_broker, postgres_server, versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("STATELOG_SINK_KILLS", "150"))
SEED = int(os.environ.get("STATELOG_CHAOS_SEED", "20261"))
FILES = ("parquet", "json", "csv", "table", "delta")
PACKAGES = ("deltalake", "pyiceberg", "sqlalchemy", "confluent_kafka", "psycopg")


@pytest.fixture
def servers() -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {
            "kafka": stack.enter_context(kafka_broker()),
            "postgres": stack.enter_context(postgres_server()),
        }


@pytest.fixture(autouse=True)
def packages() -> None:
    for package in PACKAGES:
        pytest.importorskip(package)


@pytest.mark.parametrize("catalog", ["in-memory", "hive"])
def test_every_row_is_written_once_whenever_the_job_is_killed(catalog: str, tmp_path: Path) -> None:
    run(tmp_path, FILES, catalog, f"{catalog} catalog", {})


def test_targets_with_transactions_get_rows_once(servers: dict[str, str], tmp_path: Path) -> None:
    run(tmp_path, TRANSACTIONAL, "in-memory", ", ".join(TRANSACTIONAL), servers)


def run(
    folder: Path, sinks: Sequence[str], catalog: str, case: str, servers: dict[str, str]
) -> None:
    """Kill a job with these sinks, each staged and direct, and record the campaign."""
    queries = [f"{sink}-{delivery}" for sink in sinks for delivery in ("staged", "direct")]
    campaign = SinkCampaign(folder, queries, catalog, SEED, servers)
    name = "kills of queries with sinks"
    names = versions() if servers else []
    with evidence.campaign(name, case, seeds=[SEED], servers=names, spark=True) as record:
        campaign.run(KILLS // 3)
        print(campaign.story)
        if KILLS >= 150:
            assert all(campaign.situations[name, BETWEEN] for name in queries), campaign.story
        record.runs, record.kills = 1, campaign.kills()
        record.counts.update({what: campaign.total(what) for what in (BEFORE, BETWEEN)})
        record.counts.update(
            {"conforming traces": len(queries), "events of traces": campaign.trace_events}
        )
        record.counts["processes killed"] = len(campaign.deaths)
