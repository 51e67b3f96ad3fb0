"""What all tests share: marks by place, and how Hypothesis behaves."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SPARK_TESTS = (Path(__file__).parent / "spark", Path(__file__).parent / "cluster")

# Small queries in a young JVM: its optimizing compiler and parallel collector cost more than they
# give.  Spark's launcher reads this variable, in the programs that tests start too.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Deadlines measure the machine, not the code; a failure prints the line that replays it.
settings.register_profile(
    "statelog",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("statelog"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "statelog"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in tests/spark and tests/cluster, before marks select what runs."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in SPARK_TESTS):
            item.add_marker(pytest.mark.spark)
