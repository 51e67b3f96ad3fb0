"""The sink of Kafka on a broker that stores the metadata of offsets, as Apache Kafka does: a stand-in."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.support.processes.killed_sink import killed_in
from tests.support.servers.kafka_stand_in import Broker, Consumer, Producer, Row

from statelog.errors import FencedError
from statelog.extensions.sinks import kafka
from statelog.spark import ExactlyOnceSink, KafkaSink
from statelog.spark.stream.sinks.exactly_once_sink import ExactlyOnce
from statelog.testing.sink_contract import SinkContract, batch, deliver


class TestKafkaWithMetadata(SinkContract):
    @pytest.fixture
    def sink(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaSink]:
        self.broker = Broker.newest = Broker()
        monkeypatch.setattr(kafka, "Producer", Producer)
        monkeypatch.setattr(kafka, "Consumer", Consumer)
        with contextlib.closing(KafkaSink("topic", {"bootstrap.servers": "broker"})) as sink:
            yield sink

    def stored(self, sink: ExactlyOnceSink) -> Sequence[Row]:
        return self.broker.records

    def killed_before_commit(self, sink: ExactlyOnceSink) -> Any:
        return killed_in(kafka)

    def test_offset_and_metadata_have_the_record(self, sink: KafkaSink) -> None:
        self.write(sink, batch(3, timeline=2, plan="aa"))
        (place,) = self.broker.offsets.values()
        assert (2 * 2**32 + 3, batch(3, timeline=2, plan="aa").record) == place

    def test_a_producer_that_opens_late_is_rejected_by_the_record(self, sink: KafkaSink) -> None:
        deliver(ExactlyOnce(sink), batch(1, timeline=4))
        with self.another_of(sink) as late, pytest.raises(FencedError, match="was rewound"):
            deliver(ExactlyOnce(late), batch(2))
        with pytest.raises(FencedError, match="A second driver is running this query"):
            sink.write(batch(2, timeline=4, after=batch(1, timeline=4)))
