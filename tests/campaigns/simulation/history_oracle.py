"""
Check a simulated history as a whole: handles, files, local copies, and the end.

Each handle is read back and compared with the model, from the store and from intact local copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import pyarrow as pa
from tests.campaigns.simulation.actors import Actor, Checkpoint
from tests.campaigns.simulation.faulty_disk import FaultyDisk
from tests.campaigns.simulation.watch import Watch
from tests.support.reference_log import canonical

from statelog.changelog.reader import ReadReport, read_change_batches
from statelog.changelog.upload.batching import BatchingStateChangeUploadScheduler
from statelog.changelog.upload.scheduler import StateChangeUploadScheduler
from statelog.errors import (
    ChangesTruncatedError,
    ClosedError,
    InvariantError,
    ObjectNotFoundError,
    UploadFailedError,
    check,
)
from statelog.model import FileStateHandle, StateChange
from statelog.testing.faulty_store import FaultyStore


class HistoryOracle:
    """Compares a history with the invariants of the system."""

    def __init__(self, store: FaultyStore, disk: FaultyDisk, watch: Watch) -> None:
        self._store = store
        self._disk = disk
        self._watch = watch
        self.newest_confirmed = 0
        self.local_reads = 0
        self.set_aside = 0

    # --- one checkpoint ---------------------------------------------------------------------------

    def look_at(self, actor: Actor, checkpoint: Checkpoint) -> None:
        """Compare the result of a persist with the model, once."""
        self.read_back(actor, checkpoint)
        handle, model = checkpoint.handle, actor.model
        sizes = {
            sqn: model.size_bytes(sqn, sqn + 1)
            for sqn in range(checkpoint.from_sqn, checkpoint.to_sqn)
            if sqn not in actor.counted
        }
        actor.counted.update(sizes)
        incremental = handle.incremental_size_bytes
        check(incremental == sum(sizes.values()), "the incremental size is wrong")
        size_bytes = model.size_bytes(checkpoint.from_sqn, checkpoint.to_sqn)
        check(handle.size_bytes == size_bytes, "a size is wrong")
        check(handle.checkpoint_id == checkpoint.checkpoint_id, "a label is wrong")
        missing = [path for path in _local_files(checkpoint) if path not in self._disk.files]
        check(not missing, f"the local copy names {missing}, which does not exist")

    def read_back(self, actor: Actor, checkpoint: Checkpoint) -> None:
        """Compare a handle with the model, read with and without its local copy."""
        expected = actor.model.sets(checkpoint.from_sqn, checkpoint.to_sqn)
        try:
            batches = list(read_change_batches(self._store, checkpoint.handle))
        except ObjectNotFoundError as error:
            raise InvariantError(f"checkpoint {checkpoint.checkpoint_id} lost a file") from error
        check(_canonical(batches) == expected, "a handle holds other changes")
        if checkpoint.local is None:
            return
        whole = self._whole_copies(checkpoint)
        report = ReadReport()
        restored = list(
            read_change_batches(
                self._store,
                checkpoint.handle,
                local=checkpoint.local,
                report=report,
                disk=self._disk,
            )
        )
        check(_canonical(restored) == expected, "a restore with local copies has other changes")
        check(report.local_files >= whole, "a local copy is intact and was not used")
        self.local_reads += report.local_files
        self.set_aside += len(report.set_aside)

    def _whole_copies(self, checkpoint: Checkpoint) -> int:
        """Return the number of local files that equal the store's."""
        local = checkpoint.local
        copies = () if local is None else local.handles_and_offsets
        pairs = zip(checkpoint.handle.handles_and_offsets, copies, strict=True)
        whole = 0
        for (remote, copy), _ in groupby((remote.handle, copy.handle) for remote, copy in pairs):
            if isinstance(remote, FileStateHandle) and isinstance(copy, FileStateHandle):
                whole += self._disk.files.get(copy.path) == self._store.objects[remote.path]
        return whole

    def reason_is_fair(
        self, actor: Actor, checkpoint: Checkpoint, *, closed: bool, faults: bool
    ) -> None:
        """Check that a persist has failed for an allowed reason."""
        match checkpoint.future.exception():
            case ClosedError():
                check(actor.closed or closed, "closed without a close")
            case ChangesTruncatedError():
                check(checkpoint.from_sqn < actor.model.truncated_to, "not truncated")
            case UploadFailedError():
                check(faults, "an upload failed without a fault")
            case error:
                check(False, f"an unexpected failure: {error!r}")

    # --- the whole --------------------------------------------------------------------------------

    def when_quiet(self, actors: Sequence[Actor], scheduler: StateChangeUploadScheduler) -> None:
        """Check liveness: every operation has ended."""
        for actor in actors:
            for checkpoint in actor.checkpoints:
                check(checkpoint.future.done(), "a persist never ended")
        check(
            scheduler.availability.is_available,
            "there is capacity, and availability does not report it",
        )
        if isinstance(scheduler, BatchingStateChangeUploadScheduler):
            check(scheduler.in_flight_bytes == 0, "bytes in flight while nothing moves")
        self.local_copies_are_there(actors)

    def what_hangs_is_in_flight(self, scheduler: StateChangeUploadScheduler) -> None:
        """Check that an upload holds its bytes while one of its attempts has a thread."""
        if isinstance(scheduler, BatchingStateChangeUploadScheduler):
            with_threads = self._watch.uploads_with_threads()
            check(
                scheduler.uploads_in_flight == with_threads, "an attempt hangs and is not in flight"
            )

    def local_copies_are_there(self, actors: Sequence[Actor]) -> None:
        """Check that the newest confirmed checkpoint and later ones have their copies."""
        for actor in actors:
            for checkpoint in actor.completed:
                if checkpoint.aborted or checkpoint.checkpoint_id < self.newest_confirmed:
                    continue
                for remote, copy in _local_files(checkpoint).values():
                    is_owned = remote not in self._watch.ownership.deleted
                    gone = is_owned and copy not in self._disk.files
                    check(not gone, f"checkpoint {checkpoint.checkpoint_id} lost its local {copy}")

    def no_garbage(self, actors: Iterable[Actor]) -> None:
        """Check that every file is needed, in a world without faults."""
        used = {path for actor in actors for path in actor.files()}
        garbage = set(self._store.objects) - used - self._watch.ownership.confirmed
        check(not garbage, f"unneeded files exist: {sorted(garbage)}")

    def no_local_garbage(self, known: Iterable[str]) -> None:
        """Check that the registry tracks every copy, on a disk without faults."""
        garbage = set(self._disk.files) - set(known)
        check(not garbage, f"untracked local files exist: {sorted(garbage)}")

    def after_close(self, actors: Iterable[Actor]) -> None:
        """Check the handles that a checkpoint may name, after the end."""
        for actor in actors:
            for checkpoint in actor.kept():
                self.read_back(actor, checkpoint)

    def only_owned_files(self) -> None:
        """Check that only files of checkpoints exist after an end without faults."""
        garbage = set(self._store.objects) - self._watch.ownership.confirmed
        check(not garbage, f"files in no returned handle exist: {sorted(garbage)}")


def _canonical(batches: Iterable[pa.RecordBatch]) -> list[dict[int, list[bytes]]]:
    return [
        canonical(map(StateChange, batch.column(0).to_pylist(), batch.column(1).to_pylist()))
        for batch in batches
    ]


def _local_files(checkpoint: Checkpoint) -> dict[str, tuple[str, str]]:
    """Return remote and local path of each file with a copy, by local path."""
    if checkpoint.local is None:
        return {}
    return {
        copy.handle.path: (entry.handle.path, copy.handle.path)
        for entry, copy in zip(
            checkpoint.handle.handles_and_offsets, checkpoint.local.handles_and_offsets, strict=True
        )
        if isinstance(entry.handle, FileStateHandle) and isinstance(copy.handle, FileStateHandle)
    }
