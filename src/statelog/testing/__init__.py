"""
What users test with.

`ProcessorTester` runs a `StatefulProcessor` in a unit test, without Spark (needs the extra `spark`).
`store_contract` tests a store of one's own, and `faulty_store` has faults for the tests of its users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statelog.spark.testing.processor_tester import ProcessorTester

__all__ = ["ProcessorTester"]


def __getattr__(name: str) -> Any:
    # It needs PySpark; the stores do not.
    if name == "ProcessorTester":
        from statelog.spark.testing.processor_tester import ProcessorTester

        return ProcessorTester
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
