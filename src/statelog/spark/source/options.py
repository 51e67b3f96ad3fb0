"""Check the options of a read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from statelog.checkpoint.at_time import parse_time
from statelog.checkpoint.tags import check_name
from statelog.errors import InvalidOptionsError, UsageError
from statelog.model import KeyGroupRange
from statelog.store.encryption import with_source

STATE_VIEW: Final = "state"
CHANGES_VIEW: Final = "changes"
LOG_VIEW: Final = "log"
CHECKPOINTS_VIEW: Final = "checkpoints"
DEFAULT_READER_CHECKPOINTS: Final = 1000
"""How far a named reader may fall behind: within a day at a micro-batch in 90 seconds."""
_LATEST: Final = "latest"
_EARLIEST: Final = "earliest"
_STORE_PREFIX: Final = "storeOptions."
_RANGE: Final = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_OPERATOR: Final = ("stateVarName", "operatorId", "keyGroups", "partitions")
_BETWEEN: Final = ("startingCheckpoint", "endingCheckpoint")
_STREAM: Final = ("maxCheckpointsPerTrigger", "reader", "readerMaxCheckpoints")
_OF_VIEW: Final = {
    STATE_VIEW: (*_OPERATOR, "checkpointId", "columns", "flattenCollections", "filterPushdown"),
    CHANGES_VIEW: (*_OPERATOR, *_BETWEEN, *_STREAM),
    LOG_VIEW: ("stateVarName", "operatorId", "keyGroups", *_BETWEEN, "decode"),
    CHECKPOINTS_VIEW: (),
}
_NAMES: Final = (
    "path",
    "view",
    *_OF_VIEW[STATE_VIEW],
    *_BETWEEN,
    *_STREAM,
    "decode",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """
    The options of `spark.read.format("statelog")`, and of `readStream`.

    A checkpoint is given as a number, "latest", "earliest", the name of a tag, or a time of ISO 8601:
    the newest retained one that was created at or before it.

    Args:
        path: The state location; `load(path)` sets it.  For the view "log" also a folder of changelog
            files of Flink, or one such file.
        view: "state" for the rows of one state variable, "changes" for what checkpoints changed, "log"
            for the changes in the log, "checkpoints" for one row per checkpoint.
        stateVarName: The state variable; None for the only one, and for all in the view "changes".
        checkpointId: The checkpoint; None for the newest one ("latest").
        operatorId: The operator; None for the only one.
        keyGroups: The key groups to read, as "3" or "0-15"; None for all.
        partitions: Number of partitions; None for one per 32 MiB of stored bytes.
        columns: The columns to read, separated by commas; None for all.
        flattenCollections: One row for each element, entry and timer; False for one row per key.
        filterPushdown: Read only the key groups that filters on the key leave; needs Spark's setting
            spark.sql.python.filterPushdown.enabled (Spark 4.1 and later).
        startingCheckpoint: Changes after this one; None for the whole state first, as inserts.
        endingCheckpoint: Changes up to this one; None for the newest one.
        maxCheckpointsPerTrigger: Checkpoints of a micro-batch of a stream; None for all.
        reader: Name under which a stream keeps its position in the location; None for none.
        readerMaxCheckpoints: How many checkpoints the position of `reader` keeps at most.
        decode: Show the operations in the log, False for its bytes.
        store: Options of the store's client, given as `storeOptions.<name>`.
    """

    path: str
    view: str = STATE_VIEW
    stateVarName: str | None = None
    checkpointId: str | None = None
    operatorId: str | None = None
    keyGroups: KeyGroupRange | None = None
    partitions: int | None = None
    columns: tuple[str, ...] | None = None
    flattenCollections: bool = True
    filterPushdown: bool = False
    startingCheckpoint: str | None = None
    endingCheckpoint: str | None = None
    maxCheckpointsPerTrigger: int | None = None
    reader: str | None = None
    readerMaxCheckpoints: int = DEFAULT_READER_CHECKPOINTS
    decode: bool = True
    store: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """
        Return the options of a read.

        Args:
            given: Spark's options; names in any case.

        Raises:
            InvalidOptionsError: A name is unknown or missing, or a value has the wrong form.
        """
        options = {name.lower(): value for name, value in given.items()}
        store = {
            name[len(_STORE_PREFIX) :]: options.pop(name)
            for name in list(options)
            if name.startswith(_STORE_PREFIX.lower())
        }
        known = {name: options.pop(name.lower(), None) for name in _NAMES}
        if options:
            # Values are not shown: one of them may be a secret.
            raise InvalidOptionsError(
                f"the format statelog has no option {', '.join(sorted(options))}; it has "
                f"{', '.join(_NAMES)}, and {_STORE_PREFIX}<name> for an option of the store"
            )
        path = known["path"]
        if not path:
            raise InvalidOptionsError(
                'the format statelog needs a state location: spark.read.format("statelog")'
                ".load(location)"
            )
        view = _view(known)
        return cls(
            path=path,
            view=view,
            stateVarName=known["stateVarName"],
            checkpointId=_checkpoint("checkpointId", known),
            operatorId=known["operatorId"],
            keyGroups=_key_groups(known["keyGroups"]),
            partitions=_number("partitions", known),
            columns=_columns(known["columns"]),
            flattenCollections=_switch("flattenCollections", known, True),
            filterPushdown=_switch("filterPushdown", known, False),
            startingCheckpoint=_checkpoint("startingCheckpoint", known),
            endingCheckpoint=_checkpoint("endingCheckpoint", known),
            maxCheckpointsPerTrigger=_number("maxCheckpointsPerTrigger", known),
            reader=_reader(known),
            readerMaxCheckpoints=_number("readerMaxCheckpoints", known)
            or DEFAULT_READER_CHECKPOINTS,
            decode=_switch("decode", known, True),
            store=with_source(store),
        )


def _view(known: Mapping[str, str | None]) -> str:
    view = (known["view"] or STATE_VIEW).lower()
    if view not in _OF_VIEW:
        raise InvalidOptionsError(
            f"view must be {', '.join([*_OF_VIEW][:-1])} or {[*_OF_VIEW][-1]}, not {view!r}"
        )
    taken = ("path", "view", *_OF_VIEW[view])
    unused = [name for name in _NAMES if known[name] is not None and name not in taken]
    if unused:
        raise InvalidOptionsError(
            f"the view {view} takes no {', '.join(unused)}; it takes "
            f"{', '.join(_OF_VIEW[view]) or 'no options but the path'}"
        )
    return view


def _checkpoint(name: str, known: Mapping[str, str | None]) -> str | None:
    """Return a number, a tag or a time as it was given; None for the newest checkpoint."""
    value = (known[name] or _LATEST).strip()
    if known[name] is None or value.lower() == _LATEST:
        return _LATEST if name == "startingCheckpoint" and known[name] is not None else None
    if value.lower() == _EARLIEST:
        return _EARLIEST
    if re.fullmatch(r"\d+", value, re.ASCII):
        return value
    for check in (check_name, parse_time):
        try:
            check(value)
        except UsageError:
            continue
        return value
    raise InvalidOptionsError(
        f"{name} must be a number, {_LATEST}, {_EARLIEST}, a tag, or a time of ISO 8601 such as "
        f"2026-11-22T10:30:00Z, not {value!r:.100}"
    )


def _reader(known: Mapping[str, str | None]) -> str | None:
    name = known["reader"]
    if name is None:
        if known["readerMaxCheckpoints"] is not None:
            raise InvalidOptionsError("readerMaxCheckpoints needs the option reader, a name")
        return None
    try:
        return check_name(name)
    except UsageError as error:
        raise InvalidOptionsError(f"the option reader: {error}") from error


def _columns(value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise InvalidOptionsError(
            f"columns must be names with commas between them, not {value!r:.100}"
        )
    return names


def _key_groups(value: str | None) -> KeyGroupRange | None:
    if value is None:
        return None
    matched = _RANGE.fullmatch(value)
    start, end = (matched[1], matched[2] or matched[1]) if matched else ("1", "0")
    if int(start) > int(end):
        raise InvalidOptionsError(
            f"keyGroups must be one key group such as 3, or a range such as 0-15, not {value!r}"
        )
    return KeyGroupRange(int(start), int(end))


def _number(name: str, known: Mapping[str, str | None]) -> int | None:
    value = known[name]
    if value is None:
        return None
    if not re.fullmatch(r"[1-9]\d*", value.strip(), re.ASCII):
        raise InvalidOptionsError(f"{name} must be a number of 1 or more, not {value!r}")
    return int(value)


def _switch(name: str, known: Mapping[str, str | None], default: bool) -> bool:
    value = known[name]
    if value is None:
        return default
    if value.strip().lower() not in ("true", "false"):
        raise InvalidOptionsError(f"{name} must be true or false, not {value!r}")
    return value.strip().lower() == "true"
