"""Micro-batches for a sink, and a frame that notes how it is written."""

from collections.abc import Callable
from typing import Any

from statelog.core.delivered_batch import DeliveredBatch
from statelog.spark.query.delivery import set_batch

Deliver = Callable[..., None]


class Frame:
    """A frame that has the properties of its query, and nothing else."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sparkSession = self.sparkContext = self
        self._properties = {"sql.streaming.queryId": "query"}

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get(key)

    def setLocalProperty(self, key: str, value: str) -> None:
        self._properties[key] = value


def driver_of(sink: Callable[[Any, int], None]) -> Deliver:
    """Return a driver that delivers frames of its micro-batches to a sink."""

    def deliver(batch: DeliveredBatch, text: str = "row") -> None:
        frame: Any = Frame(text)
        set_batch(frame, batch)
        sink(frame, batch.batch_id)

    return deliver


def batch(number: int, timeline: int = 0, location: str = "a", plan: str = "") -> DeliveredBatch:
    return DeliveredBatch(location, timeline, number, plan)
