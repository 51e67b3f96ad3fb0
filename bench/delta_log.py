"""
Write commits and deletion vectors of a Delta table, by Delta's published protocol.

An experiment, not part of statelog: docs/explanation/delta-upserts.md.  It supports what upserts by deletion
vectors need: tables without partitions, one writer, no checkpoints of the Delta log.  A commit is one
put-if-absent of `_delta_log/<version>.json`.
Source: github.com/delta-io/delta, PROTOCOL.md (actions, deletion vectors and their format).
"""

from __future__ import annotations

import json
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from statelog.errors import ObjectExistsError, StatelogError
from statelog.store import ObjectStore

Positions = npt.NDArray[np.int64]
Action = dict[str, Any]

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC = 1681511377
_COOKIE_NO_RUNS = 12346
_ARRAY_MAX = 4096
_INLINE_MAX_BYTES = 512
"""A vector up to this size is part of the commit; larger ones of a commit share one file."""
_FEATURES = ["deletionVectors"]
_TYPES = {pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}


class CommitTakenError(StatelogError):
    """Another writer has committed the version."""


def z85(data: bytes) -> str:
    """Return Z85 text; *data* is filled up to a multiple of four bytes with zeros."""
    data += b"\0" * (-len(data) % 4)
    text = []
    for (number,) in struct.iter_unpack(">I", data):
        digits = []
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits.append(_Z85[digit])
        text += reversed(digits)
    return "".join(text)


def roaring(positions: npt.NDArray[np.uint32]) -> bytes:
    """Return sorted 32-bit positions in the portable format of Roaring bitmaps, without runs."""
    highs = positions >> 16
    keys, starts, counts = np.unique(highs, return_index=True, return_counts=True)
    bodies = []
    for start, count in zip(starts, counts, strict=True):
        low = (positions[start : start + count] & 0xFFFF).astype("<u2")
        if count <= _ARRAY_MAX:
            bodies.append(low.tobytes())
        else:
            bits = np.zeros(1 << 16, np.uint8)
            bits[low] = 1
            bodies.append(np.packbits(bits, bitorder="little").tobytes())
    head = struct.pack("<II", _COOKIE_NO_RUNS, len(keys))
    described = np.stack([keys, counts - 1], axis=1).astype("<u2").tobytes()
    begin = len(head) + len(described) + 4 * len(keys)
    offsets = begin + np.cumsum([0, *map(len, bodies)])[:-1]
    return b"".join([head, described, offsets.astype("<u4").tobytes(), *bodies])


def bitmap_array(positions: Positions) -> bytes:
    """Return positions as the RoaringBitmapArray of a deletion vector; sorted, each once."""
    highs, starts = np.unique(positions >> 32, return_index=True)
    parts = [struct.pack("<IQ", _MAGIC, len(highs))]
    for high, part in zip(highs, np.split(positions, starts[1:]), strict=True):
        parts += [struct.pack("<I", high), roaring((part & 0xFFFFFFFF).astype(np.uint32))]
    return b"".join(parts)


@dataclass
class DataFile:
    """
    A Parquet file of the table.

    Args:
        path: Its name in the table.
        rows, size_bytes: Number of its rows, and its size.
        deleted: Positions of rows that are deleted, ascending.
        vector: Descriptor of its deletion vector; None without one.
    """

    path: str
    rows: int
    size_bytes: int
    deleted: Positions = field(default_factory=lambda: np.zeros(0, np.int64))
    vector: Action | None = None

    def add(self) -> Action:
        """Return the action that adds it, with its vector."""
        stats = json.dumps({"numRecords": self.rows, "tightBounds": self.vector is None})
        action: Action = {
            "path": self.path,
            "partitionValues": {},
            "size": self.size_bytes,
            "modificationTime": _now_ms(),
            "dataChange": True,
            "stats": stats,
        }
        return {"add": action | ({} if self.vector is None else {"deletionVector": self.vector})}

    def remove(self) -> Action:
        """Return the action that removes it with its present vector."""
        action: Action = {
            "path": self.path,
            "deletionTimestamp": _now_ms(),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": self.size_bytes,
        }
        vector = {} if self.vector is None else {"deletionVector": self.vector}
        return {"remove": action | vector}


class DeltaLog:
    """
    A Delta table that this writer alone writes to.

    Args:
        store: Its folder.
        app_id: Name of the writer in transactions.
    """

    def __init__(self, store: ObjectStore, app_id: str) -> None:
        self._store = store
        self._app_id = app_id
        self.version = -1
        self.files: dict[int, DataFile] = {}
        """Live files by the version that added them first, which is their number in the state."""

    def create(self, schema: pa.Schema) -> None:
        """Commit version 0: an empty table with deletion vectors."""
        fields = [
            {"name": one.name, "type": _TYPES[one.type], "nullable": True, "metadata": {}}
            for one in schema
        ]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": _FEATURES,
            "writerFeatures": _FEATURES,
        }
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {"delta.enableDeletionVectors": "true"},
            "createdTime": _now_ms(),
        }
        self._put(0, [{"protocol": protocol}, {"metaData": metadata}])

    def commit(
        self, rows: pa.Table, deleted: Mapping[int, Positions], batch_id: int | None = None
    ) -> int:
        """
        Commit new rows as one file, and the positions of rows that they replace or delete.

        Args:
            rows: Rows to append; with none there is no file.
            deleted: Positions by the number of their file; none of them is deleted yet.
            batch_id: The transaction's version; None for none.

        Returns:
            The number of the new file.

        Raises:
            CommitTakenError: Another writer has committed; positions may have moved.
        """
        number = self.version + 1
        actions: list[Action] = []
        changed: dict[int, DataFile] = {}
        if batch_id is not None:
            actions.append({"txn": {"appId": self._app_id, "version": batch_id}})
        for file, new in deleted.items():
            old = self.files[file]
            merged = np.union1d(old.deleted, new)
            if len(merged) != len(old.deleted) + len(new):
                raise StatelogError(f"a row of {old.path} would be deleted twice")
            actions.append(old.remove())
            changed[file] = DataFile(old.path, old.rows, old.size_bytes, merged)
        alive = {file: one for file, one in changed.items() if len(one.deleted) < one.rows}
        self._store_vectors(list(alive.values()))
        actions += [one.add() for one in alive.values()]
        if rows.num_rows:
            written = self._write(rows)
            alive[number] = written
            actions.append(written.add())
        self._put(number, actions)
        for file in changed:
            del self.files[file]
        self.files |= alive
        return number

    def replace(self, rows: Iterable[pa.Table], files: Sequence[int]) -> dict[int, DataFile]:
        """
        Replace live files by new ones with the same rows: a compaction, in one commit.

        Returns:
            The new files by number: those of one commit are numbered in steps of 2^-20, as integers.
        """
        version = self.version + 1
        written = {(version << 20) + at: self._write(one) for at, one in enumerate(rows)}
        actions = [self.files[file].remove() for file in files]
        actions += [one.add() for one in written.values()]
        for action in actions:
            for facts in action.values():
                facts["dataChange"] = False
        self._put(version, actions)
        for file in files:
            del self.files[file]
        self.files |= written
        return written

    def _write(self, rows: pa.Table) -> DataFile:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        data = sink.getvalue()
        path = f"part-{uuid.uuid4()}.zstd.parquet"
        self._store.put(path, memoryview(data))
        return DataFile(path, rows.num_rows, data.size)

    def _store_vectors(self, files: Sequence[DataFile]) -> None:
        """Describe the deletion vector of each file; the large ones are stored in one object."""
        name, parts, size = uuid.uuid4(), [b"\x01"], 1
        for one in files:
            data = bitmap_array(one.deleted)
            facts = {"sizeInBytes": len(data), "cardinality": len(one.deleted)}
            if len(data) <= _INLINE_MAX_BYTES:
                one.vector = {"storageType": "i", "pathOrInlineDv": z85(data), **facts}
                continue
            checksum = struct.pack(">I", zlib.crc32(data))
            place = {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": size}
            one.vector = place | facts
            parts += [struct.pack(">I", len(data)), data, checksum]
            size += len(data) + 8
        if size > 1:
            self._store.put(f"deletion_vector_{name}.bin", b"".join(parts))

    def _put(self, version: int, actions: Sequence[Action]) -> None:
        text = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in actions)
        path = f"_delta_log/{version:020}.json"
        try:
            self._store.put_if_absent(path, text.encode())
        except ObjectExistsError as error:
            raise CommitTakenError(f"version {version} of {self._store.url} is taken") from error
        self.version = version


def _now_ms() -> int:
    return int(time.time() * 1000)
