"""
Probe whether a store supports put-if-absent correctly, which commits depend on.

A server that ignores the condition answers every put with success, and so does a server that checks
it before the upload, if several puts of a name arrive together.  Two drivers could both commit
there.  So several writers put one name at once, in several rounds, before the first claim of a
location.  The location remembers the result, together with the server that was probed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from statelog.errors import (
    CorruptionError,
    IncompatibleFormatError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from statelog.runtime.pool import together
from statelog.store.api import ObjectStore
from statelog.store.location import kind_of
from statelog.store.paths import PATHS
from statelog.store.requests import endpoint_of
from statelog.store.verified import put_or_find, read_verified

WRITERS: Final = 5
ROUNDS: Final = 4
_VERSION: Final = 1
"""Of the probe: raised when the probe finds more, so that every location is probed again."""
_CONTENT: Final = b"statelog asks whether this store refuses to write a name twice\n"
_SIZE: Final = 64 * 1024
"""Of the content: an upload that takes time shows a server that checks before it."""

_verified: set[tuple[str, str]] = set()
"""Stores that passed the probe, now or in an earlier process: URLs and servers."""


def verify_put_if_absent(
    store: ObjectStore,
    pause: Callable[[float], None] = lambda seconds: None,
) -> None:
    """
    Check that exactly one of several put-if-absent requests to *store* for a name succeeds.

    Probed once for each location and server: a later process reads the result from the location.
    Local disk and memory need no probe, and neither does a store of the caller's own class, which
    must pass the store contract.

    Args:
        store: The store of the location.
        pause: Waits the given number of seconds if the store answers "exists" and returns no
            object.

    Raises:
        StoreError: The store let several writers win, or overwrote (`reason` "put_if_absent"), or
            it failed.

    Blocks: On the store: 27 requests in 8 round trips the first time, one request in each later
        process, none afterwards in a process.
    """
    server = _server_of(store)
    if server is None or (store.url, server) in _verified:
        return
    result = PATHS.probed(hashlib.sha256(f"{_VERSION} {server}".encode()).hexdigest()[:16])
    if not _is_remembered(store, result, server):
        _Probe(store, pause).run()
        _remember(store, result, server)
    _verified.add((store.url, server))


def _server_of(store: ObjectStore) -> str | None:
    """Return the server to which a probe result applies, or None if no probe is needed."""
    server = endpoint_of(store)
    if server is None and (kind := kind_of(store.url)) is not None and kind.is_remote:
        server = "/".join(store.url.split("/", 3)[:3])
    return server


def _is_remembered(store: ObjectStore, path: str, server: str) -> bool:
    """Return whether the location contains the result of probing this server."""
    try:
        result = json.loads(bytes(store.get(path)))
    except (ObjectNotFoundError, CorruptionError, IncompatibleFormatError, ValueError):
        return False  # none, or an unreadable one: the probe runs again
    if not isinstance(result, dict):
        return False
    return (result.get("version"), result.get("server")) == (_VERSION, server)


def _remember(store: ObjectStore, path: str, server: str) -> None:
    """Try to store the result; if that fails, the next process probes again."""
    result = {"version": _VERSION, "server": server, "writers": WRITERS, "rounds": ROUNDS}
    try:
        store.put(path, json.dumps(result).encode())
    except StoreError:
        pass


@dataclass(slots=True)
class _Probe:
    """A probe: several rounds of writers racing for a name, then a late put."""

    store: ObjectStore
    pause: Callable[[float], None]
    names: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run all rounds; raises and blocks like `verify_put_if_absent`."""
        try:
            winners = [self._race(number) for number in range(1, ROUNDS + 1)]
            checks: list[Callable[[], None]] = [self._put_late]
            for name, winner in zip(self.names, winners, strict=True):
                checks.append(partial(self._read_back, name, winner))
            together(checks)
        finally:
            _delete_quietly(self.store, self.names)

    def _race(self, number: int) -> bytes | None:
        """
        Let several writers race to write the same name.

        Return the content of the winner, None if all were refused.
        """
        name = PATHS.temporary(f"probe-{os.urandom(16).hex()}")
        self.names.append(name)
        contents = [_content() for _ in range(WRITERS)]
        puts = [partial(self._put, name, content) for content in contents]
        answers = together(puts, at_one_moment=True)
        won = [content for content, answer in zip(contents, answers, strict=True) if answer is None]
        if len(won) > 1:
            self._refuse(name, f"{len(won)} of {WRITERS}", number)
        for answer in answers:
            if answer is not None and not isinstance(answer, ObjectExistsError):
                raise answer
        if won:
            return won[0]
        # Refusals alone prove nothing: a client that repeats requests by itself finds its own object,
        # and takes S3's 409 for "exists".  After this call the object exists.
        put_or_find(self.store, name, _content(), lambda: self.store.head(name), self.pause)
        return None

    def _put(self, name: str, content: bytes) -> StoreError | None:
        """Write an object; return the store's error, if any."""
        try:
            self.store.put_if_absent(name, content)
        except StoreError as error:
            return error
        return None

    def _read_back(self, name: str, winner: bytes | None) -> None:
        """Check that the winner's object is stored; a single wrong read is not conclusive."""

        def check(data: memoryview) -> None:
            if winner is not None and bytes(data) != winner:
                raise CorruptionError(f"{name} belongs to a different writer", path=name)

        try:
            read_verified(self.store, name, check)
        except CorruptionError as error:
            fault = "a rejected put-if-absent has overwritten the object"
            raise self._error(fault, name) from error

    def _put_late(self) -> None:
        """Write the name of the first race once more."""
        if self._is_overwritten(self.names[0]):
            raise self._error(_IGNORED, self.names[0])

    def _is_overwritten(self, name: str) -> bool:
        try:
            self.store.put_if_absent(name, _content())
        except ObjectExistsError:
            return False
        return True

    def _refuse(self, name: str, winners: str, number: int) -> None:
        """Raise the error for a race that several writers won."""
        if self._is_overwritten(name):
            raise self._error(_IGNORED, name)
        raise self._error(
            f"the server reported success to {winners} writers that created the same name at the same "
            f"time (round {number}): it checks the condition If-None-Match: * before it stores "
            "the object",
            name,
        )

    def _error(self, fault: str, name: str) -> StoreError:
        return StoreError(
            f"{self.store.url} cannot store checkpoints: {fault}. Two drivers could both commit. Use a "
            "server or version with atomic conditional writes, for example S3, GCS, Azure, MinIO or a "
            "current SeaweedFS; docs/how-to/stores.md lists what statelog assumes",
            path=name,
            url=self.store.url,
            operation="put-if-absent",
            reason="put_if_absent",
        )


_IGNORED: Final = "it writes a name twice despite the condition If-None-Match: *"


def _content() -> bytes:
    """Return content that is unique to a writer."""
    head = _CONTENT + os.urandom(16).hex().encode() + b"\n"
    return head.ljust(_SIZE, b".")


def _delete_quietly(store: ObjectStore, names: Sequence[str]) -> None:
    """Try to delete the probe's object; if that fails, garbage collection deletes it."""
    try:
        store.delete(names)
    except StoreError:
        pass
