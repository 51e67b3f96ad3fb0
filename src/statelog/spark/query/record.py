"""
Which keys a query records, and how much of them.

The setting `record` is a list of keys, a share of all keys, or the word "failed".  Whatever it is,
keys whose processing raises are recorded too.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from statelog.errors import UsageError
from statelog.options.kinds import Kind
from statelog.state.keys.state_key import StateKey

FAILED: Final = "failed"
DEFAULT_BYTES: Final = 4 * 1024 * 1024
DEFAULT_CHECKPOINTS: Final = 100
DEFAULT_AGE: Final = dt.timedelta(days=7)
_KEY_SHARE: Final = 8
"""One key takes at most this part of the bytes of a micro-batch."""


@dataclass(frozen=True, slots=True)
class RecordRule:
    """The keys to record: a share of all by their hash, 0 to 1, or single keys as tuples."""

    rate: float = 0.0
    keys: tuple[tuple[object, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RecordSpec:
    """
    What the tasks of an operator record.

    Args:
        rate: The share of all keys, 0 to 1.
        keys: Single keys, with the values that Arrow returns from columns of the key's types.
        batch_bytes: Most bytes of one task in one micro-batch.
        key_bytes: Most bytes of one key in one micro-batch.
        operator_id: Name of the operator where the query has several, else "".
    """

    rate: float
    keys: tuple[tuple[object, ...], ...]
    batch_bytes: int
    key_bytes: int
    operator_id: str


def _rule(value: object) -> RecordRule | None:
    """Return the rule; text is "failed", a number, or keys as a JSON list.  None records nothing."""
    if isinstance(value, RecordRule):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.lower() in ("", "off", "false", "none"):
            return None
        if text.lower() == FAILED:
            return RecordRule()
        value = json.loads(text)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return RecordRule(rate=float(value)) if value else None
    if isinstance(value, list | tuple | set | frozenset) and value:
        return RecordRule(keys=tuple(_key(entry) for entry in value))
    raise ValueError


RECORD: Final = Kind(
    'a list of keys, 0 to 1, or "failed"',
    _rule,
    f'a list of keys, the share of keys to record (0 to 1), or "{FAILED}" (as text the list is JSON, '
    'such as ["c1", "c2"])',
    shows_value=False,
)
"""The kind of the setting; keys are personal data, which no error shows."""


def _key(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def keys_of_operators(
    rule: RecordRule, schemas: Sequence[pa.Schema]
) -> list[tuple[tuple[object, ...], ...]]:
    """Return the keys of the rule for each operator, in the types of its key columns."""
    by_operator: list[list[tuple[object, ...]]] = [[] for _ in schemas]
    for key in rule.keys:
        refused: UsageError | None = None
        fits = False
        for keys, schema in zip(by_operator, schemas, strict=True):
            try:
                keys.append(StateKey(key, schema).values)
                fits = True
            except UsageError as error:
                refused = error
        if refused is not None and not fits:
            raise UsageError(f"record: {refused}")
    return [tuple(keys) for keys in by_operator]


def key_bytes_of(batch_bytes: int) -> int:
    """Return the most bytes of one key, given the most of a micro-batch."""
    return max(batch_bytes // _KEY_SHARE, 1)
