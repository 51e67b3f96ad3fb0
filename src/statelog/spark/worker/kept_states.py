"""
The states that a worker process keeps between tasks, with the resources they use.

A worker may run tasks of several queries of an application, at once or one after the other, and
exists while any of them has tasks for it.  So a state that no task has asked for in a while is
forgotten: its query has ended, most likely, and if not, the next task restores it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.errors import StatelogError
from statelog.metrics import MetricsJournal
from statelog.options import Options
from statelog.runtime.clock import IdSource, RandomIds
from statelog.spark.query.face import AnyProcessor, face_of
from statelog.spark.rows.types import make_row
from statelog.spark.worker.garbage import GARBAGE
from statelog.spark.worker.protocol import TaskSpec
from statelog.state.cache import AnyState
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap import StateBackendConfig
from statelog.state.schema import OperatorStateSchema
from statelog.store import CachedStore, open_location
from statelog.store.requests import REPEATED_REQUESTS, RepeatedSince

_log = logging.getLogger("statelog.spark")

KEPT_S: Final = 600.0
"""Seconds without a task after which a state is released, longer than most triggers."""

_CACHED_BYTES: Final = 64 * 1024 * 1024

_repeated = RepeatedSince()
"""Of all states: a request is counted by the task of any of them that ends next."""


class KeptState:
    """The state of an operator in this process, with its store and its changelog."""

    def __init__(self, spec: TaskSpec) -> None:
        task_state = spec.state
        self.run = _run_of(spec)
        self.store = CachedStore(
            open_location(task_state.location, options=dict(task_state.storage_options)),
            _CACHED_BYTES,
        )
        self.ids = RandomIds()
        codec = OperatorCodec(OperatorStateSchema.from_json(task_state.schema), make_row)
        backend = task_state.backend
        self.state = new_state(spec.context.processor, codec, backend, _name_of(spec), self.ids)
        self.used_s = 0.0
        self.metrics = MetricsJournal({REPEATED_REQUESTS: _repeated.take})
        self.storage = FsStateChangelogStorage.from_options(
            Options(changelog=task_state.changelog),
            self.store,
            job_id="",
            metrics=self.metrics,
            inline_bytes=spec.inline_bytes,
        )

    def close(self) -> None:
        """Stop the threads of the changelog, if there are any; errors are logged."""
        try:
            self.storage.close()
        except StatelogError as error:
            _log.warning("the changelog of an earlier run could not be closed: %s", error)


class KeptStates:
    """
    All states that this process keeps, which are excluded from garbage collection.

    Thread: one at a time; Spark runs one task in a Python worker.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_name: dict[str, KeptState] = {}

    def of(self, spec: TaskSpec) -> KeptState:
        """Return the state for a task, and release states that have been unused for `KEPT_S`."""
        name = _name_of(spec)
        now_s = self._clock()
        # Forget what a rewind or another run has made wrong, and what was not used for a while.
        old = [
            other_name
            for other_name, worker_state in self._by_name.items()
            # A new run of the query may start from an older checkpoint: begin without cache.
            if (
                worker_state.run != _run_of(spec)
                if other_name == name
                else worker_state.used_s < now_s - KEPT_S
            )
            or worker_state.storage.interrupted
        ]
        if old:
            self._forget(old)
        worker_state = self._by_name.get(name)
        if worker_state is None:
            worker_state = self._by_name[name] = KeptState(spec)
            GARBAGE.require_exclusion()
        worker_state.used_s = now_s
        return worker_state

    def _forget(self, names: Sequence[str]) -> None:
        """Release states, and free their memory before a task needs more."""
        for name in names:
            self._by_name.pop(name).close()
        # Excluded objects are not deleted otherwise.
        GARBAGE.collect_everything()
        pa.default_memory_pool().release_unused()


def _run_of(spec: TaskSpec) -> tuple[int, str]:
    return spec.state.epoch, spec.state.run_id


def _name_of(spec: TaskSpec) -> str:
    """Return the name of an operator's state on this host."""
    state = spec.state
    return f"{state.location}#{state.operator}" if state.operator else state.location


def new_state(
    processor: AnyProcessor,
    codec: OperatorCodec,
    backend: StateBackendConfig | None = None,
    name: str = "",
    ids: IdSource | None = None,
) -> AnyState:
    """Return an empty state for a processor."""
    make = face_of(processor).new_state
    if backend is None or ids is None:
        return make(codec)
    # Imported here: the driver, which imports this module too, does not open files.
    from statelog.state.columnar.run_files import opener

    return make(codec, backend.limits(), opener(backend, name, ids))
