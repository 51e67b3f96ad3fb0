"""
Tools for testing user code.

`ProcessorTester` runs a `StatefulProcessor` in a unit test, without Spark (needs the extra
`spark`).  `store_contract` tests a store of one's own, and `faulty_store` has faults for the tests
of its users.  `sink_contract` tests a sink of one's own for `exactly_once` (needs the extra
`spark`).
"""

from statelog.first_use import public_names

__getattr__, __dir__, __all__ = public_names(
    __name__
)  # ProcessorTester needs PySpark; the stores do not
