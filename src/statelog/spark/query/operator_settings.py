"""The settings as keyword arguments of `transform_with_state`."""

from __future__ import annotations

import datetime as dt
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypedDict, TypeVar

from statelog.metrics import Metrics
from statelog.options import SnapshotPolicy
from statelog.spark.query.progress import BatchProgress
from statelog.spark.query.settings import SETTINGS

Function = TypeVar("Function", bound=Callable[..., object])
_REFERENCE: Final = "`OperatorSettings`."


class OperatorSettings(TypedDict, total=False):
    """
    Its docstring is built from SETTINGS.

    A test compares the names here with that table.
    """

    stateLocation: str | None
    delivery: str | None
    fileSink: str | None
    noDataBatches: bool | None
    tasks: int | None
    minTasks: int | None
    maxTasks: int | None
    maxParallelism: int | None
    operatorId: str | None
    restoreFrom: int | str | None
    adopt: bool | None
    retainedCheckpoints: int | None
    inlineBytes: int | str | None
    memoryBudget: int | str | None
    stateBackend: str | None
    localDirectory: str | None
    storeOptions: Mapping[str, object] | None
    fsync: bool | None
    snapshotPolicy: SnapshotPolicy | None
    record: Sequence[object] | float | str | None
    recordBytes: int | str | None
    recordCheckpoints: int | None
    recordAge: dt.timedelta | str | None
    onProgress: Callable[[BatchProgress], None] | None
    metrics: Metrics | None


def _documentation() -> str:
    lines = [
        "Settings of an operator beyond Spark's arguments.",
        "",
        "A setting that is left out, or None, is read from the session's configuration",
        "(`spark.statelog.<name>`), then has its default.",
        "",
        "Args:",
    ]
    lines += [f"    {one.name}: ({one.values}) {one.text}" for one in SETTINGS.values()]
    return "\n".join(lines)


OperatorSettings.__doc__ = _documentation()


def names_settings(function: Function) -> Function:
    """Put the names of all settings into the docstring of a function that takes them."""
    names = ", ".join(one.name for one in SETTINGS.values())
    lines = textwrap.wrap(f"{names}.  `help(OperatorSettings)` describes each.", 84)
    text = "\n".join([_REFERENCE.replace(".", ":"), *(" " * 12 + line for line in lines)])
    if function.__doc__ is not None:  # it is None under python -OO
        function.__doc__ = function.__doc__.replace(_REFERENCE, text)
    return function
