"""
`KafkaSink`: writes rows and the record of their micro-batch in one Kafka transaction.

The record is a committed offset of the group `statelog-<writer>` in the topic's first partition,
and the metadata of that offset.  Kafka commits offsets of a transaction with its records.  The
offset has timeline and batch, for brokers with Kafka's protocol that do not store the metadata.

A producer begins by `init_transactions`, which ends the transaction that an earlier producer of the
query left, and fences that producer.  The offset is read after that, so it is final.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from statelog.core.delivered_batch import DeliveredBatch
from statelog.errors import FencedError, UnavailableError, UsageError
from statelog.extras import require
from statelog.runtime.fail_points import fail_point
from statelog.spark.stream.sinks.exactly_once_sink import SinkBatch

require("KafkaSink", "kafka", "confluent_kafka")

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

_PREFIX: Final = "statelog-"
_OURS: Final = ("transactional.id", "group.id", "enable.idempotence", "enable.auto.commit")
_FENCED: Final = (
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)
_TRANSIENT: Final = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
    KafkaError.CONCURRENT_TRANSACTIONS,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
)
_ROWS_PER_PIECE: Final = 10_000
_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Clients:
    """A writer's producer, and the consumer that reads the offset it committed."""

    producer: Producer
    consumer: Consumer


class KafkaSink:
    """
    Writes to a Kafka topic, with one transaction per micro-batch.

    The rows have the columns that Spark's own writer takes: `value`, and `key` if records have
    keys, each a string or binary.  Readers see whole micro-batches with
    `isolation.level=read_committed`.

    Kafka forgets the offsets of a group without members after `offsets.retention.minutes`, a week
    by default.  A query that was killed during a micro-batch must be started again before that.

    Example:
        sink = KafkaSink("totals", {"bootstrap.servers": "localhost:9092"})

    Args:
        topic: The topic.  It exists, or the broker creates topics.
        config: Settings of librdkafka.  `transaction.timeout.ms` must exceed the time that a
            micro-batch is written, and is 60,000 by default.
        timeout_s: The longest time of one call, in seconds.

    Raises:
        UsageError: *config* lacks `bootstrap.servers`, or has a setting that the sink makes.
    """

    def __init__(
        self, topic: str, config: Mapping[str, object], *, timeout_s: float = 60.0
    ) -> None:
        if "bootstrap.servers" not in config:
            raise UsageError("KafkaSink requires the setting 'bootstrap.servers' in its config")
        taken = [name for name in _OURS if name in config]
        if taken:
            raise UsageError(f"KafkaSink sets {', '.join(taken)} itself: omit it")
        self._topic = topic
        self._config = dict(config)
        self._timeout_s = timeout_s
        self._clients: dict[str, _Clients] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_clients": {}}

    def last_committed(self, writer: str) -> DeliveredBatch | None:
        """Abort transactions of earlier producers; return the newest micro-batch of *writer*."""
        with self._errors(writer, "cannot read the last batch of"):
            return self._last(self._open(writer))

    def write(self, batch: SinkBatch) -> None:
        """Write the rows and the record in one transaction, unless a new driver has written."""
        values = _column(batch.rows, "value")
        keys = _column(batch.rows, "key")
        if values is None:
            raise UsageError(
                "Kafka output needs a column value, and optionally a column key, but it has the columns "
                f"{', '.join(batch.rows.column_names)}: create them, for example with "
                "out.selectExpr('customer AS key', 'to_json(struct(*)) AS value')"
            )
        with self._errors(batch.writer, f"cannot write batch {batch.batch_id} of"):
            clients = self._open(batch.writer)
            batch.check_next(self._last(clients), target=f"the topic {self._topic}")
            clients.producer.begin_transaction()
            self._produce(clients.producer, keys, values)
            clients.producer.send_offsets_to_transaction(
                [TopicPartition(self._topic, 0, batch.batch.number, batch.record)],
                clients.consumer.consumer_group_metadata(),
                self._timeout_s,
            )
            fail_point("before-sink-commit")
            clients.producer.commit_transaction(self._timeout_s)

    def close(self) -> None:
        """Close the clients of all writers."""
        for writer in list(self._clients):
            self._drop(writer)

    def _open(self, writer: str) -> _Clients:
        """Return the clients of a writer."""
        clients = self._clients.get(writer)
        if clients is None:
            name = _PREFIX + writer
            producer = Producer({**self._config, "transactional.id": name})
            producer.init_transactions(self._timeout_s)
            group = {"group.id": name, "enable.auto.commit": False}
            consumer = Consumer({**self._config, **group, "isolation.level": "read_committed"})
            clients = self._clients[writer] = _Clients(producer, consumer)
        return clients

    def _last(self, clients: _Clients) -> DeliveredBatch | None:
        (place,) = clients.consumer.committed([TopicPartition(self._topic, 0)], self._timeout_s)
        if place.error is not None:
            raise KafkaException(place.error)
        if place.offset == OFFSET_INVALID:
            return None
        if not place.metadata:  # a broker that does not store it
            return DeliveredBatch.from_number(place.offset)
        where = f"the metadata of the committed offset of the topic {self._topic}"
        return DeliveredBatch.from_text(place.metadata, where=where)

    def _produce(
        self, producer: Producer, keys: pa.ChunkedArray | None, values: pa.ChunkedArray
    ) -> None:
        for first in range(0, len(values), _ROWS_PER_PIECE):
            rows = slice(first, first + _ROWS_PER_PIECE)
            texts = values[rows].to_pylist()
            names = [None] * len(texts) if keys is None else keys[rows].to_pylist()
            for key, value in zip(names, texts, strict=True):
                while True:
                    try:
                        producer.produce(self._topic, value, key)
                        break
                    except BufferError:  # the queue of the client is full
                        producer.poll(_POLL_S)
            producer.poll(0)

    @contextlib.contextmanager
    def _errors(self, writer: str, what: str) -> Iterator[None]:
        """Close the clients after an error, so that the next producer aborts open transactions."""
        try:
            yield
        except KafkaException as failure:
            self._drop(writer)
            error = failure.args[0]
            text = f"{what} {writer} in the topic {self._topic}: {error.name()}: {error.str()}"
            if error.code() in _FENCED:
                raise FencedError(
                    f"{text}. A second driver is running this query; stop one of the two"
                ) from failure
            if error.retriable() or error.txn_requires_abort() or error.code() in _TRANSIENT:
                raise UnavailableError(text) from failure
            raise
        except BaseException:
            self._drop(writer)
            raise

    def _drop(self, writer: str) -> None:
        clients = self._clients.pop(writer, None)
        if clients is not None:
            with contextlib.suppress(KafkaException):
                clients.producer.purge()
            clients.consumer.close()


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray | None:
    """Return a column that contains strings or bytes."""
    if name not in rows.column_names:
        return None
    column = rows.column(name)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    if not any(is_kind(column.type) for is_kind in (*kinds, pa.types.is_large_binary)):
        raise UsageError(
            f"the column {name} for Kafka has the type {column.type}: cast it to string"
        )
    return column
