"""A stand-in of a Kafka broker that stores the metadata of offsets, as Apache Kafka does, and its clients."""

import threading
from typing import Any, ClassVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

Row = tuple[str, str]


class Broker:
    """Records of committed transactions, offsets with metadata, and the newest producer of each id."""

    newest: ClassVar["Broker"]

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.records: list[Row] = []
        self.offsets: dict[tuple[str, str], tuple[int, str]] = {}
        self.epochs: dict[str, int] = {}


class Producer:
    def __init__(self, config: dict[str, Any]) -> None:
        self._broker, self._name = Broker.newest, config["transactional.id"]
        self._epoch = -1
        self._rows: list[Row] = []
        self._offsets: list[tuple[tuple[str, str], tuple[int, str]]] = []

    def init_transactions(self, timeout: float) -> None:
        with self._broker.lock:
            self._epoch = self._broker.epochs.get(self._name, 0) + 1
            self._broker.epochs[self._name] = self._epoch

    def begin_transaction(self) -> None:
        self._rows, self._offsets = [], []

    def produce(self, topic: str, value: Any, key: Any) -> None:
        self._rows.append((key, value))

    def poll(self, timeout: float) -> None: ...

    def purge(self) -> None: ...

    def send_offsets_to_transaction(
        self, places: list[TopicPartition], group: str, timeout: float
    ) -> None:
        self._check()
        self._offsets = [((group, place.topic), (place.offset, place.metadata)) for place in places]

    def commit_transaction(self, timeout: float) -> None:
        with self._broker.lock:
            self._check()
            self._broker.records += self._rows
            self._broker.offsets.update(self._offsets)

    def _check(self) -> None:
        if self._epoch != self._broker.epochs[self._name]:
            raise KafkaException(KafkaError(KafkaError._FENCED))


class Consumer:
    def __init__(self, config: dict[str, Any]) -> None:
        self._broker, self._group = Broker.newest, config["group.id"]

    def consumer_group_metadata(self) -> str:
        return str(self._group)

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        (place,) = places
        offset, metadata = self._broker.offsets.get(
            (self._group, place.topic), (OFFSET_INVALID, "")
        )
        return [TopicPartition(place.topic, 0, offset, metadata)]

    def close(self) -> None: ...
