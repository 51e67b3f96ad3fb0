"""
`enable(spark)`: makes `df.groupBy(...).transformWithState(...)` itself run on statelog.

Spark's method is replaced by one that runs on statelog if the frame's session was enabled; in every
other session it calls Spark's own method.  `disable` undoes this.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame, GroupedData, SparkSession

from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.spark.api import transform_with_state, transform_with_state_in_pandas
from statelog.spark.jvm.gateway import is_connect, session_id, settings_of
from statelog.spark.query.progress import OnProgress
from statelog.spark.query.resolve import resolve_settings
from statelog.spark.rows.spark_versions import refuse_before

_log = logging.getLogger("statelog.spark")

_SESSIONS: Final = "__statelog_sessions__"
"""Enabled sessions by id, with the observers that each passes to its operators."""
_Sessions = dict[str, dict[str, object]]
_CHOSEN: Final = "__statelog_chosen__"
"""Sessions that were enabled, disabled or warned about."""
_ADDED: Final = "__statelog_added__"


_OPERATORS: Final[dict[str, Callable[..., DataFrame]]] = {
    "transformWithState": transform_with_state,
    "transformWithStateInPandas": transform_with_state_in_pandas,
}
"""Spark's methods, and the functions that replace them."""


def enable(
    spark: SparkSession, *, on_progress: OnProgress | None = None, metrics: Metrics | None = None
) -> None:
    """
    Run `transformWithState` on statelog in this session.

    The state of each query is stored in the folder `statelog` of its checkpointLocation.  With
    `spark.statelog.baseLocation` at the time of the call of `transformWithState` it is stored
    elsewhere: in a base folder, under the queryName.  The other settings of `OperatorSettings`, and
    the options of docs/reference/options.md, are read from `spark.statelog.<name>` too.  A second
    call replaces the observers.

    Spark 4.0 lacks `transformWithState`, and Spark 3.5 lacks `transformWithStateInPandas` too.
    `enable` adds them, and `disable` of the last session removes them.

    Example:
        from statelog.spark import enable

        enable(spark)
        totals = events.groupBy("customer").transformWithState(
            Totals(), "customer string, total double", "Update", "none"
        )

    Args:
        spark: A session.  Sessions made from it by `newSession` are not enabled: each needs a call
            of its own, and a warning names the first call of `transformWithState` in one without.
        on_progress: Called on the driver after each micro-batch of each query of the session; see
            `transform_with_state`.
        metrics: Where the driver counts for all queries of the session; see `transform_with_state`.

    Raises:
        InvalidOptionsError: Its configuration has a setting that is unknown or wrong.
    """
    resolve_settings(settings_of(spark), {})
    kind = _grouped_data(spark)
    for name, operator in _OPERATORS.items():
        method = getattr(kind, name, None) or _missing(name)
        if not hasattr(method, _SESSIONS):
            method = _switch(method, operator)
            setattr(kind, name, method)
        getattr(method, _SESSIONS)[_id_of(spark)] = {"on_progress": on_progress, "metrics": metrics}
        getattr(method, _CHOSEN).add(_id_of(spark))


def disable(spark: SparkSession) -> None:
    """
    Run the session's `transformWithState` on Spark's own state again.

    Running queries are not affected.

    Example:
        disable(spark)
    """
    kind = _grouped_data(spark)
    for name in _OPERATORS:
        method = getattr(kind, name, None)
        sessions: _Sessions = getattr(method, _SESSIONS, {})
        sessions.pop(_id_of(spark), None)
        getattr(method, _CHOSEN, set[str]()).add(_id_of(spark))
        if method is None or not hasattr(method, _SESSIONS) or sessions:
            continue
        if hasattr(method.__wrapped__, _ADDED):
            delattr(kind, name)
        else:
            setattr(kind, name, method.__wrapped__)


def _grouped_data(session: SparkSession) -> type:
    """Return the class of the objects that the session's `groupBy` returns."""
    if not is_connect(session):
        return GroupedData
    refuse_before((4, 0), "a session of Spark Connect")
    # Imported here, because it needs the packages of Spark Connect.
    from pyspark.sql.connect import group

    return group.GroupedData


def _id_of(session: SparkSession) -> str:
    if is_connect(session):
        return str(session.session_id)  # type: ignore[attr-defined]
    return session_id(session)


def _missing(name: str) -> Callable[..., DataFrame]:
    """Return a method for other sessions, where Spark itself lacks it (3.5 and 4.0)."""

    def method(self: GroupedData, *args: object, **kwargs: object) -> DataFrame:
        raise UsageError(
            f"this version of Spark does not have {name}: call statelog.spark.enable(spark) to "
            "run it on statelog"
        )

    setattr(method, _ADDED, True)
    return method


def _switch(
    original: Callable[..., DataFrame], operator: Callable[..., DataFrame]
) -> Callable[..., DataFrame]:
    """Return a method that calls *operator* in enabled sessions only."""
    sessions: _Sessions = {}
    chosen: set[str] = set()

    @functools.wraps(original)
    def method(self: GroupedData, *args: object, **kwargs: object) -> DataFrame:
        session = self._df.sparkSession
        uuid = _id_of(session)
        if uuid not in chosen:
            chosen.add(uuid)
            _log.warning(
                "this session is not enabled, so %s runs on Spark's own state, while a different session in "
                "this process is enabled. Call enable(session) for each newSession(); "
                "call disable(session) if Spark's state is intended",
                original.__name__,
            )
        if uuid not in sessions:
            return original(self, *args, **kwargs)
        return operator(self, *args, **{**sessions[uuid], **kwargs})

    setattr(method, _SESSIONS, sessions)
    setattr(method, _CHOSEN, chosen)
    return method
