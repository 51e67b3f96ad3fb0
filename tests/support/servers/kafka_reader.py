"""
Reads a topic of Kafka as a reader with `isolation.level=read_committed` must, without a client library.

Tansu, the broker of the tests, stores the markers of committed and aborted transactions, but does not
name aborted ones in its answer to a reader, so that librdkafka returns their records too.  This reader
takes both from the markers: a record counts if the next marker of its producer says commit.
Source: KIP-98; Kafka's message format, version 2.
"""

import itertools
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

TIMEOUT_S = 30
_FETCH, _VERSION = 1, 4
_PIECE = 8 * 1024 * 1024
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_COMMIT = 1


@dataclass(frozen=True)
class Batch:
    """One batch of records, or a marker."""

    first_offset: int
    last_offset: int
    attributes: int
    producer: int
    records: list[tuple[bytes | None, bytes | None]]


def make_topic(broker: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker})
    (done,) = admin.create_topics([NewTopic(topic, 1, 1)]).values()
    done.result(TIMEOUT_S)


def committed_records(broker: str, topic: str) -> list[tuple[str, str]]:
    """Return key and value of each record of a committed transaction."""
    pending: dict[int, list[tuple[str, str]]] = {}
    committed: list[tuple[str, str]] = []
    for batch in batches(broker, topic):
        assert batch.attributes & _TRANSACTIONAL, "the sink writes in transactions only"
        if not batch.attributes & _CONTROL:
            rows = [
                ((key or b"").decode(), (value or b"").decode()) for key, value in batch.records
            ]
            pending.setdefault(batch.producer, []).extend(rows)
            continue
        ((marker, _),) = batch.records
        assert marker is not None
        rows = pending.pop(batch.producer, [])
        if struct.unpack(">hh", marker)[1] == _COMMIT:
            committed += rows
    return committed


def batches(broker: str, topic: str) -> Iterator[Batch]:
    """Yield all batches of the first partition."""
    host, _, port = broker.partition(":")
    offset = 0
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        for number in itertools.count():
            connection.sendall(_request(number, topic, offset))
            data = _records_of(_answer(connection), topic)
            from_offset = [batch for batch in _decoded(data) if batch.last_offset >= offset]
            if not from_offset:
                return
            yield from from_offset
            offset = from_offset[-1].last_offset + 1


def _request(number: int, topic: str, offset: int) -> bytes:
    name = topic.encode()
    client = b"reader"
    head = struct.pack(f">hhih{len(client)}s", _FETCH, _VERSION, number, len(client), client)
    # replica, longest wait, fewest and most bytes, isolation level; one topic with one partition
    body = struct.pack(">iiiib", -1, 100, 1, _PIECE, 0)
    body += struct.pack(f">ih{len(name)}s", 1, len(name), name)
    body += struct.pack(">iiqi", 1, 0, offset, _PIECE)
    return struct.pack(">i", len(head) + len(body)) + head + body


def _answer(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "the broker closed the connection"
        data += piece
    return data


def _records_of(answer: bytes, topic: str) -> bytes:
    """Return the records of an answer to a fetch of one partition."""
    _, _, topics, length = struct.unpack_from(">iiih", answer)
    assert 1 == topics
    at = 14 + length
    assert topic.encode() == answer[14:at]
    partitions, _, error, _, _, aborted = struct.unpack_from(">iihqqi", answer, at)
    assert (1, 0) == (partitions, error)
    at += 30 + 16 * max(aborted, 0)
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(size, 0)]


def _decoded(data: bytes) -> Iterator[Batch]:
    """Yield the whole batches; the last one may be cut short."""
    at = 0
    while at + 12 <= len(data):
        first, size = struct.unpack_from(">qi", data, at)
        end = at + 12 + size
        if end > len(data):
            return
        magic, _, attributes, last, _, _, producer, _, _, count = struct.unpack_from(
            ">bihiqqqhii", data, at + 16
        )
        assert (2, 0) == (magic, attributes & 0x7), "version 2, not compressed"
        yield Batch(first, first + last, attributes, producer, list(_records(data, at + 61, count)))
        at = end


def _records(data: bytes, at: int, count: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    for _ in range(count):
        size, at = _varint(data, at)
        end = at + size
        _, at = _varint(data, at + 1)  # after the attributes: time, then offset
        _, at = _varint(data, at)
        key, at = _bytes(data, at)
        value, _ = _bytes(data, at)
        yield key, value
        at = end


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), at
