"""The changelog of a `ProcessorTester`, on a store in memory."""

from __future__ import annotations

from collections.abc import Mapping

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.scheduler import DirectStateChangeUploadScheduler
from statelog.changelog.upload.uploader import StateChangeFsUploader
from statelog.checkpoint.stream_factory import FsCheckpointStreamFactory
from statelog.errors import InvariantError
from statelog.model import ChangeBatch, ChangelogStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.spark.rows.types import make_row
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import write_snapshot
from statelog.state.heap.tables import Overlay
from statelog.state.keyed_state import KeyedState
from statelog.state.schema.descriptors import OperatorStateSchema
from statelog.state.slots import SlotState
from statelog.store import LocationPaths, ObjectStore, open_store


class TesterLog:
    """
    State with its log and its snapshot.

    Args:
        codec: The operator's codec.
        key_group_range: All key groups.
    """

    def __init__(self, codec: OperatorCodec, key_group_range: KeyGroupRange) -> None:
        self.state = KeyedState(codec)
        self._range = key_group_range
        self._store = open_store("memory:///")
        self._paths = LocationPaths()
        uploader = StateChangeFsUploader(self._store, paths=self._paths)
        self._storage = FsStateChangelogStorage(
            self._store, job_id="", scheduler=DirectStateChangeUploadScheduler(uploader)
        )
        self._checkpoint_id = -1
        self._snapshots: tuple[MaterializedHandle, ...] = ()
        self._log: list[ChangelogStateHandle] = []
        self._slots: SlotState | None = None

    def current(self) -> KeyedState:
        """Return the committed state."""
        committed = [handle.state_handle_id for handle in self._log[-1:]]
        self.state.catch_up(self._range, self._checkpoint_id, committed, self._load)
        return self.state

    def _load(self) -> tuple[ObjectStore, ChangelogStateBackendHandle]:
        return self._store, ChangelogStateBackendHandle(
            self._range, self._checkpoint_id, self._snapshots, tuple(self._log)
        )

    def slots(self) -> SlotState:
        """Return the committed state for a columnar processor."""
        if self._slots is None:
            self._slots = SlotState(self.state.codec)
        self._slots.catch_up(self._range, self._checkpoint_id, (), self._load)
        return self._slots

    def commit(self, overlays: Mapping[int, Overlay]) -> None:
        """
        Append the overlays of one batch.

        Raises Arrow's errors if a value does not fit.
        """
        base_id = self._checkpoint_id
        handle = self.append(self.state.codec.encode(overlays))
        if handle is not None:
            self.state.stage(
                self._checkpoint_id, base_id, handle.state_handle_id, self._range, dict(overlays)
            )

    def append(self, changes: ChangeBatch) -> ChangelogStateHandle | None:
        """Append changes as a checkpoint; return their handle, None for no changes."""
        codec = self.state.codec
        if not len(changes):
            return None
        with self._storage.create_writer(codec.schema.operator_id, self._range) as writer:
            writer.append_meta(codec.metadata_change())
            writer.append_batch(changes.key_groups, changes.values)
            persisted = writer.persist(
                writer.initial_sequence_number(), checkpoint_id=self._checkpoint_id + 1
            )
            handle = persisted.result().job_manager_owned
        if handle is None:
            raise InvariantError("changes were appended, so there is a handle")
        self._checkpoint_id += 1
        self._log.append(handle)
        return handle

    def restart(self, codec: OperatorCodec, now_ms: int) -> None:
        """Read the state from the log, then from a snapshot."""
        schema = codec.schema.to_json()
        self._slots = None
        if self._checkpoint_id < 0:
            return
        for last in (False, True):
            self.state = KeyedState(OperatorCodec(OperatorStateSchema.from_json(schema), make_row))
            state = self.current()
            if last:
                return
            data = write_snapshot(state.codec, state.groups, {}, self._range, now_ms=now_ms)
            streams = FsCheckpointStreamFactory.for_checkpoint(
                self._store, self._checkpoint_id, paths=self._paths
            )
            with streams.create_task_owned_state_stream() as stream:
                stream.write(data)
                snapshot = stream.close_and_get_handle()
            if snapshot is None:
                raise InvariantError("a snapshot cannot be empty: a Parquet file has a footer")
            self._snapshots = (MaterializedHandle(self._range, self._checkpoint_id, snapshot),)
            self._log = []
