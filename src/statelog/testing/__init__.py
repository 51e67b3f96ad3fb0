"""
What users test with.

`ProcessorTester` runs a `StatefulProcessor` in a unit test, without Spark (needs the extra `spark`).
`store_contract` tests a store of one's own, and `faulty_store` has faults for the tests of its users.
`sink_contract` tests a sink of one's own for `exactly_once` (needs the extra `spark`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statelog.first_use import names_on_first_use

if TYPE_CHECKING:
    from statelog.extensions.testing.processor_tester import ProcessorTester
else:
    # It needs PySpark; the stores do not.
    __getattr__ = names_on_first_use(
        __name__, {"statelog.extensions.testing.processor_tester": "ProcessorTester"}
    )

__all__ = ["ProcessorTester"]
