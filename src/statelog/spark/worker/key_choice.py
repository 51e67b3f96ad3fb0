"""
Choose the keys that a task records.

The sample is chosen by the hash of the key, in columns, for all keys of an input at once: the same
keys in every task and at every parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statelog.errors import UsageError
from statelog.model import KeyGroupRange
from statelog.spark.query.record import RecordSpec
from statelog.spark.rows.interface import KeyedInput
from statelog.spark.rows.key_order import KeyedRows
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap.tables import Key
from statelog.state.keys.key_groups import key_group_of
from statelog.state.keys.key_hash import hash_columns

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


class KeyChoice:
    """
    Chooses the keys to record.

    Args:
        spec: The rule.
        codec: The operator's codec.
        key_groups: All key groups of the operator.
    """

    def __init__(self, spec: RecordSpec, codec: OperatorCodec, key_groups: KeyGroupRange) -> None:
        self._schema = codec.schema.key_schema
        self._key = codec.key
        self._rate = spec.rate
        self._wanted: dict[int | None, set[Key]] = {}
        for key in spec.keys:
            try:
                group = key_groups.start + key_group_of(key, self._schema, len(key_groups))
            except UsageError:  # only Spark hashes such a key
                self._wanted.setdefault(None, set()).add(self._key.freeze(key))
            else:
                self._wanted.setdefault(group, set()).add(self._key.freeze(key))

    def _sampled(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return which keys are in the sample: the same in every task, at every parallelism."""
        # The key group is the hash modulo their number: the choice takes other bits.
        mixed = hash_columns(columns, self._schema)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIX
        chosen: npt.NDArray[np.bool_] = (mixed >> np.uint64(11)).astype(np.float64) < (
            self._rate * 2.0**53
        )
        return chosen

    def of_rows(self, rows: KeyedInput) -> dict[int, set[Key]]:
        """Return the chosen keys of an input by key group."""
        chosen: dict[int, set[Key]] = {}
        kept = rows.kept if isinstance(rows, KeyedRows) else None
        if self._rate and kept is not None and kept.key_columns:
            at = np.flatnonzero(self._sampled(kept.key_columns))
            for key_group, (first, end) in kept.order.ranges.items() if len(at) else ():
                inside = at[np.searchsorted(at, first) : np.searchsorted(at, end)]
                if len(inside):
                    keys = list(rows.table_keys(key_group))
                    chosen[key_group] = {keys[one - first] for one in inside.tolist()}
        if self._wanted:
            for key_group in rows.key_groups():
                wanted = self._wanted_of(key_group)
                if wanted and (found := wanted.intersection(rows.table_keys(key_group))):
                    chosen.setdefault(key_group, set()).update(found)
        return chosen

    def of_keys(self, keys: Sequence[tuple[int, Key]]) -> set[tuple[int, Key]]:
        """Return the chosen ones of (key group, key)."""
        chosen = {one for one in keys if self._wanted and one[1] in self._wanted_of(one[0])}
        if self._rate and keys:
            columns = self._key.encode([key for _, key in keys])
            chosen.update(keys[at] for at in np.flatnonzero(self._sampled(columns)).tolist())
        return chosen

    def _wanted_of(self, key_group: int) -> set[Key]:
        return self._wanted.get(key_group, set()) | self._wanted.get(None, set())
