"""
Deliver the output rows of one micro-batch to the sink.

One module for each delivery.

    protocol   what the engine needs of a delivery
    staged     the tasks answer with their rows; the driver commits them, then calls the sink
    direct     the sink evaluates the tasks; the driver commits the state after it

A new delivery is a module here, a name in `query/delivery`, and a line in `deliveries`.
"""

from statelog.spark.driver.delivery.direct import DirectDelivery
from statelog.spark.driver.delivery.protocol import CommittedRows, OutputDelivery
from statelog.spark.driver.delivery.staged import SectionOf, StagedDelivery
from statelog.spark.query.delivery import Delivery, Sink
from statelog.spark.query.query import Query

__all__ = ["CommittedRows", "OutputDelivery", "deliveries"]


def deliveries(query: Query, sink: Sink, section_of: SectionOf) -> dict[Delivery, OutputDelivery]:
    """Return all deliveries, because a replayed batch may need another one."""
    return {
        Delivery.STAGED: StagedDelivery(query, sink, section_of),
        Delivery.DIRECT: DirectDelivery(query, sink),
    }
