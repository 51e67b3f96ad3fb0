"""Check the options of a read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from statelog.errors import InvalidOptionsError
from statelog.model import KeyGroupRange

STATE_VIEW: Final = "state"
CHECKPOINTS_VIEW: Final = "checkpoints"
_VIEWS: Final = (STATE_VIEW, CHECKPOINTS_VIEW)
_LATEST: Final = "latest"
_STORE_PREFIX: Final = "storeOptions."
_OF_STATE: Final = (
    "stateVarName",
    "checkpointId",
    "operatorId",
    "keyGroups",
    "partitions",
    "filterPushdown",
)
_NAMES: Final = ("path", "view", *_OF_STATE)
_RANGE: Final = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """
    The options of `spark.read.format("statelog")`.

    Args:
        path: The state location; `load(path)` sets it.
        view: "state" for the rows of one state variable, "checkpoints" for one row per checkpoint.
        stateVarName: The state variable; None for the only one.
        checkpointId: The checkpoint; None for the newest one ("latest").
        operatorId: The operator; None for the only one.
        keyGroups: The key groups to read, as "3" or "0-15"; None for all.
        partitions: Number of partitions; None for one per 32 MiB of stored bytes.
        filterPushdown: Read only the key groups that filters on the key leave; needs Spark's setting
            spark.sql.python.filterPushdown.enabled (Spark 4.1 and later).
        store: Options of the store's client, given as `storeOptions.<name>`.
    """

    path: str
    view: str = STATE_VIEW
    stateVarName: str | None = None
    checkpointId: int | None = None
    operatorId: str | None = None
    keyGroups: KeyGroupRange | None = None
    partitions: int | None = None
    filterPushdown: bool = False
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
        view = (known["view"] or STATE_VIEW).lower()
        if view not in _VIEWS:
            raise InvalidOptionsError(f"view must be {' or '.join(_VIEWS)}, not {view!r}")
        unused = [name for name in _OF_STATE if known[name] is not None]
        if view == CHECKPOINTS_VIEW and unused:
            raise InvalidOptionsError(
                f"the view {CHECKPOINTS_VIEW} takes no {', '.join(unused)}: it has all checkpoints "
                "of the location"
            )
        return cls(
            path=path,
            view=view,
            stateVarName=known["stateVarName"],
            checkpointId=_checkpoint(known["checkpointId"]),
            operatorId=known["operatorId"],
            keyGroups=_key_groups(known["keyGroups"]),
            partitions=_partitions(known["partitions"]),
            filterPushdown=_switch(known["filterPushdown"]),
            store=store,
        )


def _checkpoint(value: str | None) -> int | None:
    if value is None or value.strip().lower() == _LATEST:
        return None
    if not re.fullmatch(r"\d+", value.strip(), re.ASCII):
        raise InvalidOptionsError(f"checkpointId must be a number or {_LATEST}, not {value!r}")
    return int(value)


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


def _partitions(value: str | None) -> int | None:
    if value is None:
        return None
    if not re.fullmatch(r"[1-9]\d*", value.strip(), re.ASCII):
        raise InvalidOptionsError(f"partitions must be a number of 1 or more, not {value!r}")
    return int(value)


def _switch(value: str | None) -> bool:
    if value is None or value.strip().lower() in ("true", "false"):
        return value is not None and value.strip().lower() == "true"
    raise InvalidOptionsError(f"filterPushdown must be true or false, not {value!r}")
