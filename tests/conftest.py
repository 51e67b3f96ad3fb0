"""What all tests share: marks by place, and how Hypothesis behaves."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
SPARK_TESTS = (TESTS / "spark", TESTS / "cluster")
CAMPAIGNS = (
    TESTS / "contract",
    *(TESTS / "campaigns" / name for name in ("fuzz", "model", "simulation", "stress")),
)
TOOLS = (
    TESTS / "tools",
    *(TESTS / "house" / f"test_{name}.py" for name in ("evidence_page", "reference")),
)

# Small queries in a young JVM: its optimizing compiler and parallel collector cost more than they
# give.  Spark's launcher reads this variable, in the programs that tests start too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Deadlines measure the machine, not the code; a failure prints the line that replays it.
settings.register_profile(
    "statelog", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("statelog"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "statelog"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in some folders, before marks select what runs."""
    marks = (
        (SPARK_TESTS, pytest.mark.spark),
        (CAMPAIGNS, pytest.mark.campaign),
        (TOOLS, pytest.mark.tools),
    )
    for item in items:
        for folders, mark in marks:
            if any(map(item.path.is_relative_to, folders)):
                item.add_marker(mark)
