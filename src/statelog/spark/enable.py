"""
`enable(spark)`: `df.groupBy(...).transformWithState(...)` itself runs on statelog.

Spark's method is replaced by one that looks whether the frame's session was enabled and says where
state lies; every other session goes on with Spark's own.  `disable` takes it back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame, GroupedData, SparkSession

from statelog.spark.api import transform_with_state, transform_with_state_in_pandas
from statelog.spark.query.session import refuse_connect
from statelog.spark.query.settings import CONF_PREFIX, settle

_LOCATION: Final = f"{CONF_PREFIX}stateLocation"
_SESSIONS: Final = "__statelog_sessions__"


_OPERATORS: Final[dict[str, Callable[..., DataFrame]]] = {
    "transformWithState": transform_with_state,
    "transformWithStateInPandas": transform_with_state_in_pandas,
}
"""Spark's methods, and what runs in their place."""


def enable(spark: SparkSession) -> None:
    """
    Let `transformWithState` run on statelog in one session.

    It does where `spark.statelog.stateLocation` is set when it is called: a base folder, in which
    each query keeps its state under its queryName, or the word `checkpoint` for a place inside each
    query's checkpointLocation.  The other settings of `OperatorSettings`, and the options of
    docs/reference/options.md, are read from `spark.statelog.<name>` too.  Without the location the
    session goes on with Spark's own state.  Doing it twice does no more.

    Args:
        spark: A classic session; sessions made from it by `newSession` are others.

    Raises:
        UsageError: It is a session of Spark Connect.
        InvalidOptionsError: Its configuration holds a setting that is unknown or wrong.
    """
    refuse_connect("statelog.spark.enable", spark)
    settle(spark.conf.getAll, {})
    for name, operator in _OPERATORS.items():
        method = getattr(GroupedData, name)
        if not hasattr(method, _SESSIONS):
            method = _switch(method, operator)
            setattr(GroupedData, name, method)
        getattr(method, _SESSIONS).add(_id_of(spark))


def disable(spark: SparkSession) -> None:
    """
    Let `transformWithState` of a session run on Spark's own state again.

    Queries that run go on as they are.

    Raises:
        UsageError: It is a session of Spark Connect.
    """
    refuse_connect("statelog.spark.disable", spark)
    for name in _OPERATORS:
        method = getattr(GroupedData, name)
        sessions: set[str] = getattr(method, _SESSIONS, set())
        sessions.discard(_id_of(spark))
        if hasattr(method, _SESSIONS) and not sessions:
            setattr(GroupedData, name, method.__wrapped__)


def _id_of(session: SparkSession) -> str:
    # Several Python objects may stand for one session.
    return str(session._jsparkSession.sessionUUID())


def _switch(original: Callable[..., DataFrame], operator: Callable[..., DataFrame]) -> Any:
    sessions: set[str] = set()

    @functools.wraps(original)
    def method(self: GroupedData, *args: Any, **kwargs: Any) -> DataFrame:
        session = self._df.sparkSession
        enabled = _id_of(session) in sessions and session.conf.get(_LOCATION, None)
        return (operator if enabled else original)(self, *args, **kwargs)

    setattr(method, _SESSIONS, sessions)
    return method
