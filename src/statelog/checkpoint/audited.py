"""
Write the audit line of an operation, if the operation changes the location.

The store calls back before its first change, so a dry run, a repeated call that finds nothing to do, and
a call that is refused write no line.  A change is not made if its line cannot be written.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import getpass
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from statelog.checkpoint.audit import (
    BEGIN,
    DONE,
    END,
    FAILED,
    VERSION,
    BeginPart,
    EndPart,
    encoded,
)
from statelog.errors import StatelogError
from statelog.model import Json, JsonObject
from statelog.redaction import redacted
from statelog.runtime.clock import wall_clock_seconds
from statelog.store import LocationPaths, LocationStore, ObjectStore

USER_ENVIRONMENT: Final = "STATELOG_AUDIT_USER"
"""The variable with the name of the person, where processes share a user."""

_LOG = logging.getLogger("statelog")
_PATHS: Final = LocationPaths()
_TEXT_MAX: Final = 300
_ITEMS_MAX: Final = 32


class AuditedOperation:
    """
    An operation, and the line that it writes.

    Args:
        store: The location.
        operation: Its name.
        arguments: What was asked for; texts may contain URLs, whose secrets are hidden.
        outer: Begins the line of the operation that this one is a part of; None for one of its own.

    Thread: any.
    """

    def __init__(
        self,
        store: LocationStore,
        operation: str,
        arguments: JsonObject,
        outer: Callable[[], None] | None = None,
    ) -> None:
        # Without the call back: its own objects are no changes.
        self._store, self._outer = copy.copy(store), outer
        self._operation, self._arguments = operation, arguments
        self._begun: dict[str, Future[None]] = {}
        self._line = ""
        self._result: JsonObject = {}

    def begin(self) -> None:
        """
        Put the first object of the line, unless an earlier call did.

        Raises:
            StoreError: The store failed; the caller must not change anything.

        Blocks: On the store, at the first call.
        """
        if self._outer is not None:
            self._outer()
            return
        first: Future[None] = Future()
        begun = self._begun.setdefault(BEGIN, first)
        if begun is not first:  # another thread has put it, or does so now
            begun.result()
            return
        try:
            self._put_begin()
        except BaseException as error:
            self._begun.clear()
            first.set_exception(error)
            raise
        first.set_result(None)

    def _put_begin(self) -> None:
        began_at_ms = _now_ms()
        line = _name(began_at_ms)
        part = BeginPart(
            version=VERSION,
            operation=self._operation,
            arguments=_short(self._arguments),
            user=_user(),
            host=_text(socket.gethostname()),
            process=os.getpid(),
            program=_text(os.path.basename(sys.argv[0]) if sys.argv else ""),
            statelog=_version(),
            location=_text(self._store.url),
            began_at_ms=began_at_ms,
        )
        self._store.put_if_absent(_PATHS.audit_part(line, BEGIN), encoded(part))
        self._line = line

    def result(self, **facts: Json) -> None:
        """Say what was done; the line has it at its end."""
        self._result.update(facts)

    def end(self, error: Exception | None = None) -> None:
        """
        Put the second object of the line, if something was changed.

        A store that fails is logged: the operation is over, and its line remains unfinished.
        """
        if not self._line:
            return
        part = EndPart(
            version=VERSION,
            outcome=DONE if error is None else FAILED,
            result=_short(self._result),
            # Its text may contain keys.
            error="" if error is None else type(error).__name__,
            ended_at_ms=_now_ms(),
        )
        try:
            self._store.put_if_absent(_PATHS.audit_part(self._line, END), encoded(part))
        except StatelogError as failure:
            _LOG.warning("the end of %s was not written to audit/: %s", self._operation, failure)


@contextlib.contextmanager
def audited(store: ObjectStore, operation: str, **arguments: Json) -> Iterator[AuditedOperation]:
    """
    Write one audit line if the operation in the `with` block changes a location.

    An operation inside of another one on the same store is part of its line.  An interrupt leaves the line
    without an end, as a kill does.

    Args:
        store: The location.  Changes of a store that `open_location` did not open are not noticed.
        operation: Its name.
        arguments: What was asked for: no key of a person, no value and no credential.

    Blocks: On the store, two requests.
    """
    place = store if isinstance(store, LocationStore) else LocationStore(store)
    operated = AuditedOperation(place, operation, dict(arguments), place.before_change)
    if place.before_change is not None:
        yield operated
        return
    place.before_change = operated.begin
    try:
        yield operated
    except Exception as error:
        operated.end(error)
        raise
    else:
        operated.end()
    finally:
        place.before_change = None


def _name(began_at_ms: int) -> str:
    moment = dt.datetime.fromtimestamp(began_at_ms // 1000, dt.UTC)
    return f"{moment:%Y%m%dT%H%M%S}{began_at_ms % 1000:03d}Z-{os.urandom(8).hex()}"


def _user() -> str:
    named = os.environ.get(USER_ENVIRONMENT)
    if named:
        return _text(named)
    try:
        return _text(getpass.getuser())
    except (KeyError, OSError):  # a container without an entry for the user
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else ""


def _version() -> str:
    try:
        return version("statelog")
    except PackageNotFoundError:  # it runs from a folder of sources
        return ""


def _text(text: str) -> str:
    text = redacted(text).encode("utf-8", "replace").decode()
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


def _short(facts: JsonObject) -> JsonObject:
    """Return facts without the ones that were not given, within the size of a line."""
    return {name: _shortened(fact) for name, fact in facts.items() if fact not in (None, "")}


def _shortened(fact: Json) -> Json:
    if isinstance(fact, str):
        return _text(fact)
    if isinstance(fact, list | tuple):
        items = [_shortened(each) for each in fact[:_ITEMS_MAX]]
        return items if len(fact) <= _ITEMS_MAX else [*items, f"and {len(fact) - _ITEMS_MAX} more"]
    return fact


def _now_ms() -> int:
    return int(wall_clock_seconds() * 1000)
