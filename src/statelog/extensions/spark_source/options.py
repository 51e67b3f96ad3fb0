"""The options of the statelog format, each declared as a field of `SourceOptions`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from statelog.checkpoint.listing import EARLIEST, LATEST, parse_time
from statelog.checkpoint.tags import check_name
from statelog.errors import InvalidOptionsError, UsageError
from statelog.model import KeyGroupRange
from statelog.options.declaration import (
    STORAGE_OPTIONS,
    Names,
    build,
    option,
    options_of,
    read,
    store_options,
)
from statelog.options.kinds import AS_GIVEN, COUNT, SWITCH, Kind, choice
from statelog.store.location_store import with_source

STATE_VIEW: Final = "state"
CHANGES_VIEW: Final = "changes"
CHECKPOINTS_VIEW: Final = "checkpoints"
DEFAULT_READER_CHECKPOINTS: Final = 1000
"""How far a named reader may fall behind: within a day at a micro-batch in 90 seconds."""
_FORMAT: Final = "the format statelog"
_RANGE: Final = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")


def _checkpoint(value: str) -> str:
    """Return a number, tag or time unchanged."""
    checkpoint = (value or LATEST).strip()
    if checkpoint.lower() in (LATEST, EARLIEST):
        return checkpoint.lower()
    if re.fullmatch(r"\d+", checkpoint, re.ASCII):
        return checkpoint
    for check in (check_name, parse_time):
        try:
            check(checkpoint)
        except UsageError:
            continue
        return checkpoint
    raise ValueError


def _older(value: str) -> str | None:
    checkpoint = _checkpoint(value)
    return None if checkpoint == LATEST else checkpoint


def _columns(value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(","))
    if not all(names):
        raise ValueError
    return names


def _key_groups(value: str) -> KeyGroupRange:
    matched = _RANGE.fullmatch(value)
    start, end = (matched[1], matched[2] or matched[1]) if matched else ("1", "0")
    if int(start) > int(end):
        raise ValueError
    return KeyGroupRange(int(start), int(end))


_VIEWS: Final = choice(STATE_VIEW, CHANGES_VIEW, CHECKPOINTS_VIEW)
_VIEW: Final = Kind(_VIEWS.name, lambda value: _VIEWS.read(value or STATE_VIEW))
_CHECKPOINT: Final = Kind(
    f"a number, {LATEST}, {EARLIEST}, a tag, or an ISO 8601 time such as 2026-11-22T10:30:00Z",
    _checkpoint,
)
_CHECKPOINT_OR_NEWEST: Final = Kind(_CHECKPOINT.name, _older)
_COLUMNS: Final = Kind("names separated by commas", _columns)
_KEY_GROUPS: Final = Kind("one key group such as 3, or a range such as 0-15", _key_groups)
_READER: Final = Kind("a name", check_name)
_ROWS: Final = (STATE_VIEW, CHANGES_VIEW)
_STATE: Final = (STATE_VIEW,)
_CHANGES: Final = (CHANGES_VIEW,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """
    The options of the statelog format in `spark.read` and `readStream`.

    A checkpoint is given as a number, "latest", "earliest", the name of a tag, or a time of ISO
    8601: the newest retained one that was created at or before it.  Options of the store's client
    are given as `storageOptions.<name>`.

    Args:
        path: The state location; `load(path)` sets it.
        view: "state" for the rows of one state variable, "changes" for what checkpoints changed,
            "checkpoints" for one row per checkpoint.
        variable: The state variable; None for the only one, and for all in the view "changes".
        operator: The operator; None for the only one.
        keyGroups: The key groups to read, as "3" or "0-15"; None for all.
        partitions: Number of partitions; None for one per 32 MiB of stored bytes.
        checkpoint: The checkpoint whose state, or up to which changes are read; None for the newest
            one ("latest").
        since: Changes after this one; None for the whole state first, as inserts.
        batchId: The micro-batch whose checkpoint is read, in place of `checkpoint`; it must be
            retained.
        columns: The columns to read, separated by commas; None for all.
        flattenCollectionTypes: One row for each element, entry and timer; False for one row per
            key.
        filterPushdown: Read only the key groups that filters on the key leave; needs Spark's
            setting spark.sql.python.filterPushdown.enabled (Spark 4.1 and later).
        maxCheckpointsPerTrigger: Checkpoints of a micro-batch of a stream; None for all.
        reader: Name under which a stream keeps its position in the location; None for none.
        readerMaxCheckpoints: How many checkpoints the position of `reader` keeps at most.
        store: Options of the client of the store.

    Raises:
        InvalidOptionsError: A name is unknown or missing, or a value has the wrong form.
    """

    path: str = option("", "path", AS_GIVEN)
    view: str = option(STATE_VIEW, "view", _VIEW)
    variable: str | None = option(None, "variable", AS_GIVEN, only=_ROWS)
    operator: str | None = option(None, "operator", AS_GIVEN, only=_ROWS)
    keyGroups: KeyGroupRange | None = option(None, "keyGroups", _KEY_GROUPS, only=_ROWS)
    partitions: int | None = option(None, "partitions", COUNT, only=_ROWS, least=1)
    checkpoint: str | None = option(None, "checkpoint", _CHECKPOINT_OR_NEWEST, only=_ROWS)
    since: str | None = option(None, "since", _CHECKPOINT, only=_CHANGES)
    batchId: int | None = option(None, "batchId", COUNT, only=_STATE)
    columns: tuple[str, ...] | None = option(None, "columns", _COLUMNS, only=_STATE)
    flattenCollectionTypes: bool = option(True, "flattenCollectionTypes", SWITCH, only=_STATE)
    filterPushdown: bool = option(False, "filterPushdown", SWITCH, only=_STATE)
    maxCheckpointsPerTrigger: int | None = option(
        None, "maxCheckpointsPerTrigger", COUNT, only=_CHANGES, least=1
    )
    reader: str | None = option(None, "reader", _READER, only=_CHANGES)
    readerMaxCheckpoints: int = option(
        DEFAULT_READER_CHECKPOINTS, "readerMaxCheckpoints", COUNT, only=_CHANGES, least=1
    )
    store: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> SourceOptions:
        """Parse the options of a read."""
        entries, store = store_options((name, value, _FORMAT) for name, value in texts.items())
        values = read(entries, _NAMES.find)
        if not values.get("path", (None, "", None))[1]:
            raise InvalidOptionsError(
                'the format statelog needs a state location: spark.read.format("statelog")'
                ".load(location)"
            )
        options = build(cls, values, store=with_source(store))
        _check_view(options.view, values)
        if "batchId" in values and "checkpoint" in values:
            raise InvalidOptionsError(
                "batchId and checkpoint both select a checkpoint: set only one"
            )
        if "readerMaxCheckpoints" in values and "reader" not in values:
            raise InvalidOptionsError("readerMaxCheckpoints requires the option reader")
        return options


_OPTIONS: Final = options_of(SourceOptions)
_NAMES: Final = Names(
    str.lower,
    {declared.name.lower(): declared for declared in _OPTIONS},
    f"the options are {', '.join(declared.name for declared in _OPTIONS)}, and {STORAGE_OPTIONS}<name> for "
    "an option of the store",
)


def _check_view(view: str, names: Collection[str]) -> None:
    """Raise `InvalidOptionsError` for options that the chosen view does not accept."""
    unused = [
        declared.name
        for declared in _OPTIONS
        if declared.name in names and declared.only and view not in declared.only
    ]
    if unused:
        of_view = ", ".join(declared.name for declared in _OPTIONS if view in declared.only)
        raise InvalidOptionsError(
            f"the view {view} does not accept {', '.join(unused)}; it accepts "
            f"{of_view or 'only the path'}"
        )
