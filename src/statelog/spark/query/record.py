"""
The setting `record`, which selects the keys to record, and what it tells an operator's tasks.

As text each field has its own key: `record.keys`, `record.share`, ...
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from statelog.errors import UsageError
from statelog.options import MIB
from statelog.options.declaration import check_fields, describe_values, option, options_of
from statelog.options.kinds import COUNT, SIZE, SWITCH, Kind

if TYPE_CHECKING:
    from statelog.spark.query.settings import QuerySettings

Key = tuple[object, ...]


def _keys(value: object) -> tuple[Key, ...]:
    keys = json.loads(value) if isinstance(value, str) else value
    if not isinstance(keys, list | tuple | set | frozenset):
        raise TypeError
    return tuple(tuple(key) if isinstance(key, list | tuple) else (key,) for key in keys)


def _share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    share = float(value)
    if not 0 <= share <= 1:
        raise ValueError
    return share


def _unchecked(value: object, name: str, *, error: type[UsageError] = UsageError) -> object:
    """Return *value* unchecked, because the kind rejects wrong values without showing keys."""
    return value


_KEYS: Final = Kind(
    "a list of keys",
    _keys,
    'a list of keys (as text in JSON, such as ["c1", "c2"]; a key of several columns is a list)',
    check=_unchecked,
    shows_value=False,
)
"""Keys are personal data."""
_SHARE: Final = Kind("0 to 1", _share, check=_unchecked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """
    Which keys to record for `statelog replay`, and how much to record.

    It is personal data where the rows are.  Without a field nothing is recorded.

    Example:
        record=Record(keys=["c42", "c43"])

    Args:
        keys: Which keys? A key of several columns is a tuple of its values.
        share: Which share of all keys, chosen by their hash?
        failed: Record keys whose processing fails? `keys` and `share` imply it.
        bytes: How many bytes of a micro-batch at most? One key takes at most an eighth.
        checkpoints: For how many newest checkpoints is what was recorded retained?

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    keys: Sequence[object] = option((), "keys", _KEYS)
    share: float = option(0.0, "share", _SHARE)
    failed: bool = option(False, "failed", SWITCH)
    bytes: int = option(4 * MIB, "bytes", SIZE, least=1)
    checkpoints: int = option(100, "checkpoints", COUNT, least=1)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_on(self) -> bool:
        """Whether any keys are recorded."""
        return self.failed or self.share > 0 or bool(self.keys)


SECTION: Final = "record"
FIELDS: Final = options_of(Record, SECTION)
"""The fields as options `record.<name>`."""
describe_values(Record, {declared.field: declared for declared in FIELDS})


def _record(value: object) -> Record:
    if not isinstance(value, Record):
        raise TypeError
    return value


_KEY_NAMES: Final = ", ".join(declared.key for declared in FIELDS)
RECORD: Final = Kind(
    "a `Record`",
    _record,
    f"a statelog.spark.Record (outside the code, the options {_KEY_NAMES})",
    shows_value=False,
)


def keeps_rows(settings: QuerySettings) -> str:
    """Return the setting's name if a query stores the rows of keys with it, otherwise ""."""
    return f"{SECTION}.*" if settings.record.is_on else ""


@dataclass(frozen=True, slots=True)
class RecordSpec:
    """
    What an operator's tasks need to know about `record`.

    Args:
        share: The share of all keys, 0 to 1.
        keys: Single keys, with the values that Arrow returns from columns of the key's types.
        batch_bytes: Most bytes of one task in one micro-batch.
        key_bytes: Most bytes of one key in one micro-batch.
        operator_id: Name of the operator where the query has several, else "".
    """

    share: float
    keys: tuple[Key, ...]
    batch_bytes: int
    key_bytes: int
    operator_id: str
