"""What all tests share: marks by place, and how Hypothesis behaves."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

SPARK_TESTS = Path(__file__).parent / "spark"

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
    """Mark everything in tests/spark, before marks select what runs."""
    for item in items:
        if item.path.is_relative_to(SPARK_TESTS):
            item.add_marker(pytest.mark.spark)
