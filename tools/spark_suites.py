"""
Run Spark's own test classes of transformWithState on statelog, from a checkout of Spark.

    .venv/bin/python tools/spark_suites.py ~/spark                # the classic classes
    .venv/bin/python tools/spark_suites.py ~/spark --connect      # those of Spark Connect

No package of PySpark contains its tests, so the checkout has to be there: only the folder
`python/pyspark/sql/tests` of it is read.  The classes run unchanged.  What is added is
`enable(spark)` with `stateLocation=checkpoint` and `dropState=*`, and on Spark Connect a folder for
checkpointLocations, which is required there.  The tests of `expected_of` have to fail, every other one has to pass.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "pyspark.sql.tests"

CLASSIC = {
    "pandas.streaming.test_pandas_transform_with_state": "TransformWithStateInPandasTests",
    "pandas.streaming.test_transform_with_state": "TransformWithStateInPySparkTests",
    "pandas.streaming.test_pandas_transform_with_state_state_variable": (
        "TransformWithStateInPandasStateVariableTests"
    ),
    "pandas.streaming.test_transform_with_state_state_variable": (
        "TransformWithStateInPySparkStateVariableTests"
    ),
}
CONNECT = {
    "connect.pandas.streaming.test_parity_pandas_transform_with_state": (
        "TransformWithStateInPandasParityTests"
    ),
    "connect.pandas.streaming.test_parity_transform_with_state": (
        "TransformWithStateInPySparkParityTests"
    ),
    "connect.pandas.streaming.test_parity_pandas_transform_with_state_state_variable": (
        "TransformWithStateInPandasStateVariableParityTests"
    ),
    "connect.pandas.streaming.test_parity_transform_with_state_state_variable": (
        "TransformWithStateInPySparkStateVariableParityTests"
    ),
}

CHAINING = {"chaining_ops"}
"""An aggregation of Spark's after the operator, which is rejected."""
STATE_FILES = {
    "list_state_metadata",
    "value_state_metadata",
    "state_restart_with_multiple_rows_init_state",
    "state_with_timers_single_partition",
}
"""In the classes of state variables: they read Spark's own state store after the query."""
OF_CONNECT = {"query_restarts", "schema_evolution_fails"}
"""Parquet by format(), which is rejected there; and an assumption about the order of rows."""


def expected_of(module: str) -> set[str]:
    """Return the ends of the names of the tests that fail; docs/reference/parity.md has the reasons."""
    if module.endswith("_state_variable"):
        return STATE_FILES
    return CHAINING | OF_CONNECT if module.startswith("connect.") else CHAINING


def main() -> int:
    """Run the classes, each in a process of its own; 1 if one ends in another way than expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of Spark")
    parser.add_argument("--connect", action="store_true", help="the classes of Spark Connect")
    parser.add_argument("--only", default="", help="only tests whose name matches")
    parser.add_argument("--module", help="run this module's class in this process")
    options = parser.parse_args()
    modules = CONNECT if options.connect else CLASSIC
    if options.module:
        return run_class(options.checkout, options.module, modules[options.module], options.only)
    codes = [
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--module", name]).returncode
        for name in modules
    ]
    return max(codes)


def run_class(checkout: Path, module: str, name: str, only: str) -> int:
    """Run one class; 1 if a test ends in another way than expected."""
    suite = unittest.TestSuite(
        test
        for test in unittest.defaultTestLoader.loadTestsFromTestCase(
            enabled_class(checkout, module, name)
        )
        if re.search(only, test.id())
    )
    names = {test.id() for test in suite}  # the suite forgets its tests while it runs
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = {test.id() for test, _ in result.failures + result.errors}
    expected = {name for name in names if name.endswith(tuple(expected_of(module)))}
    print(f"{name}: {len(names)} ran, {len(result.skipped)} of them skipped, {len(failed)} failed")
    for text, tests in (("failed", failed - expected), ("passed", expected - failed)):
        for each in sorted(tests):
            print(f"  {text}, which is not expected: {each}")
    return int(failed != expected)


def enabled_class(checkout: Path, module: str, name: str) -> type[unittest.TestCase]:
    """Return Spark's test class, with its session enabled."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # The launcher of Spark reads it: small queries in a young JVM.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    import pyspark.sql
    from pyspark import cloudpickle

    pyspark.sql.__path__.append(str(checkout / "python" / "pyspark" / "sql"))
    cloudpickle.register_pickle_by_value(importlib.import_module(PACKAGE))
    sparks: Any = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)

    class Enabled(sparks):  # type: ignore[misc]
        """Spark's class, with an enabled session."""

        @classmethod
        def setUpClass(cls) -> None:
            from statelog.demo.java import prepare_environment
            from statelog.spark import enable

            prepare_environment()
            super().setUpClass()
            cls.spark.conf.set("spark.statelog.baseLocation", "checkpoint")
            cls.spark.conf.set("spark.statelog.dropState", "*")  # tests of evolution remove fields
            enable(cls.spark)

    Enabled.__qualname__ = name
    if ".connect." in sparks.__module__:
        _give_locations()
    return Enabled


def _give_locations() -> None:
    """Give a temporary checkpointLocation to each query that has none."""
    from statelog.extensions.connect.client import ConnectStreamWriter

    location_of = ConnectStreamWriter._checkpoint_location

    def location(self: Any, one_time: bool) -> str | None:
        if self._checkpoint is None:
            self._checkpoint = tempfile.mkdtemp(prefix="statelog-suite-")
        return location_of(self, one_time)

    ConnectStreamWriter._checkpoint_location = location  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
