"""A location whose checkpoints a test writes by values, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.locations.batch_records import one_operator
from tests.support.locations.checkpoints import ManualClock
from tests.support.state_objects import bind

from statelog import changelog as cl
from statelog.checkpoint import CheckpointCoordinator
from statelog.model import KeyGroupRange, TaskStateSnapshot
from statelog.options import CheckpointOptions
from statelog.state import objects
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_groups import key_group_of
from statelog.state.schema import OperatorStateSchema
from statelog.store import open_store

GROUPS = KeyGroupRange(0, 3)

States = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""By key and variable: a tuple, a list of tuples, a dict from tuples to tuples, or times of timers."""


class WrittenState:
    """The state of one operator, of which each commit changes some keys."""

    def __init__(self, location: Path, schema: OperatorStateSchema, retained: int = 3) -> None:
        self.location = str(location)
        self.schema = schema
        store = open_store(self.location, storage_options={"fsync": False})
        self._coordinator = CheckpointCoordinator(
            store,
            owner_id="writer",
            max_parallelism=len(GROUPS),
            options=CheckpointOptions(retained=retained),
            clock_ms=ManualClock(),
        )
        self._coordinator.claim()
        self._coordinator.restore()
        self._codec = OperatorCodec(schema)
        self._empty = KeyedState(self._codec)
        self._empty.catch_up(GROUPS, -1, (), lambda: (store, None))

    def commit(self, states: States, now_ms: int = -1) -> int:
        """Replace the given states of some keys, and return the id of the checkpoint."""
        checkpoint_id = self._coordinator.next_checkpoint_id
        encoded = self._codec.encode(self._overlays(states))
        self._coordinator.trigger(checkpoint_id, [GROUPS])
        with (
            cl.FsStateChangelogStorage(self.location) as storage,
            storage.create_writer(self.schema.operator_id, GROUPS) as writer,
        ):
            writer.append_meta(self._codec.metadata_change())
            writer.append_batch(encoded.key_groups, encoded.values)
            start = writer.initial_sequence_number()
            log = writer.persist(start, checkpoint_id).result().job_manager_owned
        self._coordinator.acknowledge(checkpoint_id, TaskStateSnapshot(GROUPS, log, None))
        record = one_operator(
            operator_id=self.schema.operator_id, schema=self.schema.to_json(), now_ms=now_ms
        )
        self._coordinator.complete(checkpoint_id, properties=record.to_properties())
        self._coordinator.clean_up()
        return checkpoint_id

    def _overlays(self, states: States) -> dict[int, Any]:
        cursor = objects.Cursor(-1)
        overlays: dict[int, Any] = {}
        for key, of_key in states.items():
            group = key_group_of(key, self.schema.key_schema, len(GROUPS))
            overlay = overlays.setdefault(group, [{} for _ in self.schema.states])
            for name, state in of_key.items():
                bound = bind(self._codec, cursor, self.schema.state_id(name))
                cursor.enter(self._empty.groups[group], overlay)
                cursor.key = key
                _replace(bound, state)
        return overlays


def _replace(bound: Any, state: Any) -> None:
    match bound:
        case objects.Timers():
            for time_ms in state:
                bound.register(time_ms)
        case objects.MapState():
            bound.clear()
            for user_key, value in state.items():
                bound.put(user_key, value)
        case objects.ListState():
            bound.put(state)
        case _ if state is None:
            bound.clear()
        case _:
            bound.update(state)
