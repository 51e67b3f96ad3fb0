"""
Tools to test statelog, and to test jobs of users.

A `World` runs the real storage, writers and schedulers from one seed: virtual clock, pools without
threads, a store with faults as values, a reference model, and checkers for safety, liveness and
policy.  `python -m statelog.testing.world --seed N` replays one history.

`ProcessorTester` runs a `StatefulProcessor` in a unit test, without Spark (needs the extra `spark`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statelog.spark.testing.processor_tester import ProcessorTester

__all__ = ["ProcessorTester"]


def __getattr__(name: str) -> Any:
    # It needs PySpark; the simulated world does not.
    if name == "ProcessorTester":
        from statelog.spark.testing.processor_tester import ProcessorTester

        return ProcessorTester
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
