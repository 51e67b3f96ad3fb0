"""List the engine's extensions in the order in which it calls them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple, TypeVar

from statelog.errors import InvariantError, UsageError

_Loaded = TypeVar("_Loaded")


class ExtensionRow(NamedTuple):
    """
    An extension; each part is a `module:name` that is imported when it is first used.

    Args:
        name: The key of its parts in the specs and the answers of tasks.
        driver: Its half on the driver, see `spark.driver.extension`.
        worker: Its half in the worker, see `spark.worker.extension`.
        declaration: What a processor declares to it, see `spark.query.declared_state`; "" for
            nothing.
        calls: The methods that it adds to the handle of a processor.
        variables: Returns the state variables that it adds to each operator, given the settings of
            the query; their names begin with `$`.  "" for none.
        keeps_rows: Returns the key of the setting that keeps rows for it, given the settings of the
            query; "" where it does not keep rows.
        advice: Returns the error of a task in which the extension does not have a part; "" for
            none.
    """

    name: str
    driver: str
    worker: str
    declaration: str = ""
    calls: tuple[str, ...] = ()
    variables: str = ""
    keeps_rows: str = ""
    advice: str = ""


EXTENSIONS: Final = (
    ExtensionRow(
        "recordings",
        "statelog.extensions.recordings.driver:Recordings",
        "statelog.extensions.recordings.worker:TaskRecordings",
        keeps_rows="statelog.spark.query.record:keeps_rows",
        advice="statelog.extensions.recordings.worker:advised",
    ),
    ExtensionRow(
        "bad_records",
        "statelog.extensions.bad_records.driver:BadRecords",
        "statelog.extensions.bad_records.worker:TaskBadRecords",
        variables="statelog.extensions.bad_records.marks:variables",
        keeps_rows="statelog.extensions.bad_records.policy:keeps_rows",
    ),
    ExtensionRow(
        "side_outputs",
        "statelog.extensions.side_outputs.driver:SideOutputs",
        "statelog.extensions.side_outputs.worker:TaskSideOutputs",
        "statelog.extensions.side_outputs.declaration:DeclaredSideOutputs",
        ("sideOutput",),
    ),
    ExtensionRow(
        "broadcasts",
        "statelog.extensions.broadcasts.driver:Broadcasts",
        "statelog.extensions.broadcasts.worker:TaskBroadcasts",
        "statelog.extensions.broadcasts.driver:DeclaredBroadcasts",
        ("broadcast",),
    ),
)


BROADCAST_SOURCES: Final = "statelog.extensions.broadcasts.tables:sources"
"""Reads the value of the setting `broadcast`."""

CONNECT_CLIENT: Final = "statelog.extensions.connect.client:CONNECT"
"""The `Client` for a session of Spark Connect."""


def loaded(path: str, kind: type[_Loaded]) -> _Loaded:
    """
    Import the object named by `module:name` when it is first used, and return it.

    Raises if it is not a *kind*.
    """
    module, _, name = path.partition(":")
    value: object = getattr(import_module(module), name)
    if not isinstance(value, kind):
        raise InvariantError(f"{path} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def row_of_call(method: str) -> ExtensionRow | None:
    """Return the extension that adds this method to a processor's handle, or None."""
    return next((row for row in EXTENSIONS if method in row.calls), None)


class ExtendedHandle:
    """A processor's handle with the methods that extensions add."""

    def __getattr__(self, method: str) -> Callable[..., object]:
        row = row_of_call(method)
        if row is None:
            raise AttributeError(
                f"{type(self).__name__!r} object does not have the attribute {method!r}"
            )
        call = vars(self)[method] = self._call_of(row, method)
        return call

    def _call_of(self, row: ExtensionRow, method: str) -> Callable[..., object]:
        """Return a method added by an extension; outside `init`, it raises `UsageError`."""
        raise UsageError(f"{method}() can be called only in init()")
