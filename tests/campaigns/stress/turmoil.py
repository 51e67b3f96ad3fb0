"""
Writers, their producers, and the side of the checkpoints, on real threads.

The rules are the world's of the simulation: a model of every writer says what each acknowledged
handle must hold.  Models forget what is truncated, so that a long run stays small.
"""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from tests.campaigns.simulation.actors import Checkpoint
from tests.campaigns.stress.chaos_store import ChaosStore
from tests.support.reference_log import canonical

import statelog as sl
from statelog import changelog as cl

KEY_GROUPS = sl.KeyGroupRange(0, 9)
RETAINED = 3


class Model:
    """What the sets of one writer hold, from the truncation point on."""

    def __init__(self) -> None:
        self.sets: dict[int, list[cl.StateChange]] = {}
        self.active: list[cl.StateChange] = []
        self.lowest = self.next = 0

    def follow(self, active_sqn: int) -> None:
        """Cut where the writer has cut, by itself or on request."""
        if active_sqn > self.next:
            self.sets[self.next] = self.active
            self.active, self.next = [], active_sqn

    def truncate(self, to_sqn: int) -> None:
        for sqn in range(self.lowest, to_sqn):
            self.sets.pop(sqn, None)
        self.lowest = max(self.lowest, to_sqn)

    def changes(self, from_sqn: int, to_sqn: int) -> dict[int, list[bytes]]:
        return canonical(
            change_set for sqn in range(from_sqn, to_sqn) for change_set in self.sets[sqn]
        )


class CheckpointSide:
    """Keeps the newest handles of each writer and deletes the files that only it still knows."""

    def __init__(self, store: ChaosStore, registry: cl.TaskChangelogRegistry) -> None:
        self._store = store
        self._registry = registry
        self._lock = threading.Lock()
        self._retained: dict[int, list[cl.ChangelogStateHandle]] = {}
        self.files: dict[str, cl.FileStateHandle] = {}

    def take(self, log_id: int, handle: cl.ChangelogStateHandle) -> None:
        with self._lock:
            retained = self._retained.setdefault(log_id, [])
            retained.append(handle)
            del retained[:-RETAINED]
            self.files.update(_files(handle))

    def forget(self, log_id: int) -> None:
        with self._lock:
            self._retained.pop(log_id, None)

    def inherit(self, files: dict[str, cl.FileStateHandle]) -> None:
        """Take over what a closed writer has handed out."""
        with self._lock:
            self.files.update(files)

    def known(self, files: dict[str, cl.FileStateHandle]) -> dict[str, cl.FileStateHandle]:
        """Return those of *files* that somebody owns still."""
        return {
            path: file for path, file in files.items() if self._registry.owner(file) is not None
        }

    def sweep(self) -> None:
        with self._lock:
            named = {
                path
                for retained in self._retained.values()
                for handle in retained
                for path in _files(handle)
            }
            kept = {path: self.files[path] for path in named & self.files.keys()}
            kept |= self.known(self.files)
            gone = self.files.keys() - kept.keys()
            self.files = kept
        self._store.inner.delete(gone)


def _files(handle: cl.ChangelogStateHandle) -> dict[str, cl.FileStateHandle]:
    return {
        entry.handle.path: entry.handle
        for entry in handle.handles_and_offsets
        if isinstance(entry.handle, cl.FileStateHandle)
    }


@dataclass
class Actor:
    """One writer, its model and its persists; belongs to one thread."""

    writer: cl.FsStateChangelogWriter
    model: Model = field(default_factory=Model)
    persists: list[Checkpoint] = field(default_factory=list)
    handed_out: dict[str, cl.FileStateHandle] = field(default_factory=dict)

    def follow(self) -> None:
        self.model.follow(self.writer._log.active_sqn)


class Producer:
    """A thread that appends, persists, confirms, truncates, and sometimes begins a new writer."""

    def __init__(
        self, storage: cl.FsStateChangelogStorage, side: CheckpointSide, seed: int, writers: int
    ) -> None:
        self._storage = storage
        self._side = side
        self._rng = random.Random(seed)
        self._next_checkpoint = 1
        self.counts: Counter[str] = Counter()
        self.actors = [self._open() for _ in range(writers)]
        self.error: BaseException | None = None

    def run(self, until_s: float) -> None:
        try:
            while time.monotonic() < until_s:
                self._turn(self._rng.choice(self.actors))
        except BaseException as error:
            self.error = error

    def _open(self) -> Actor:
        return Actor(self._storage.create_writer("stress", KEY_GROUPS))

    def _turn(self, actor: Actor) -> None:
        operation = self._rng.choices(
            [self._append, self._append_batch, self._persist, self._advance, self._replace],
            [50, 20, 20, 20, 0.3],
        )[0]
        try:
            operation(actor)
        except cl.BackpressureTimeoutError:
            self.counts["no room"] += 1
        actor.follow()

    def _append(self, actor: Actor) -> None:
        change = cl.StateChange(self._rng.randrange(-1, 10), self._rng.randbytes(100))
        actor.model.active.append(change)
        if change.key_group < 0:
            actor.writer.append_meta(change.value)
        else:
            actor.writer.append(change.key_group, change.value)

    def _append_batch(self, actor: Actor) -> None:
        size = self._rng.choice([0, 10, 400])
        changes = [
            cl.StateChange(self._rng.randrange(10), self._rng.randbytes(size))
            for _ in range(self._rng.randrange(30))
        ]
        actor.model.active.extend(changes)
        actor.writer.append_batch(
            np.array([change.key_group for change in changes], np.int32),
            pa.array([change.value for change in changes], pa.binary()),
        )

    def _persist(self, actor: Actor) -> None:
        if sum(not persist.future.done() for persist in actor.persists) > 4:
            actor.persists[0].future.exception(timeout=60)
        number = actor.writer.next_sequence_number()
        actor.follow()
        checkpoint_id, self._next_checkpoint = self._next_checkpoint, self._next_checkpoint + 1
        from_sqn = cl.SequenceNumber(actor.model.lowest)
        future = actor.writer.persist(from_sqn, checkpoint_id)
        actor.persists.append(Checkpoint(checkpoint_id, from_sqn.value, number.value, future))
        if self._rng.random() < 0.3:  # a wait without a time-out runs uploads on this thread
            future.exception()

    def _advance(self, actor: Actor) -> None:
        """Look at what has ended: check it, confirm it, and give up what lies below."""
        for persist in [persist for persist in actor.persists if persist.future.done()]:
            actor.persists.remove(persist)
            handle = self.judge(actor, persist)
            if handle is None or self._rng.random() < 0.2:
                if handle is not None:
                    actor.writer.reset(
                        cl.SequenceNumber(persist.from_sqn),
                        cl.SequenceNumber(persist.to_sqn),
                        persist.checkpoint_id,
                    )
                continue
            self._side.take(actor.writer.log_id, handle)
            actor.writer.confirm(
                cl.SequenceNumber(persist.from_sqn),
                cl.SequenceNumber(persist.to_sqn),
                persist.checkpoint_id,
            )
            if self._rng.random() < 0.4:
                lowest = actor.model.lowest
                to_sqn = self._rng.randint(lowest, max(lowest, persist.to_sqn))
                actor.model.truncate(to_sqn)
                actor.writer.truncate(cl.SequenceNumber(to_sqn))
        if self._rng.random() < 0.1:
            self._side.sweep()
            actor.handed_out = self._side.known(actor.handed_out)

    def _replace(self, actor: Actor) -> None:
        if self._rng.random() < 0.5:
            actor.writer.close()
        else:
            actor.writer.truncate_and_close(cl.SequenceNumber(actor.model.lowest))
        for persist in actor.persists:
            # An upload thread may be about to resolve it: the core has decided, the future waits.
            if persist.future.exception(timeout=10) is None:
                actor.handed_out.update(_files(persist.handle))
        self._side.inherit(actor.handed_out)
        self._side.forget(actor.writer.log_id)
        self.actors[self.actors.index(actor)] = self._open()
        self.counts["replaced"] += 1

    def judge(self, actor: Actor, persist: Checkpoint) -> cl.ChangelogStateHandle | None:
        """Return the handle of a persist that succeeded, after comparing it with the model."""
        error = persist.future.exception()
        if error is not None:
            assert isinstance(error, cl.UploadFailedError | cl.ChangesTruncatedError), repr(error)
            self.counts[type(error).__name__] += 1
            return None
        self.counts["acknowledged"] += 1
        handle = persist.handle
        actor.handed_out.update(_files(handle))
        if persist.from_sqn < actor.model.lowest:
            return None  # truncated meanwhile; nobody may rely on it
        expected = actor.model.changes(persist.from_sqn, persist.to_sqn)
        assert expected == canonical(self._storage.read(handle))
        return handle

    def settle(self) -> None:
        """Persist everything on a store that is well, and check every open persist."""
        for actor in self.actors:
            self._persist(actor)
            for persist in actor.persists:
                persist.future.exception(timeout=60)
            assert actor.persists[-1].future.exception() is None
            self._advance(actor)
            actor.follow()

    def end(self) -> None:
        """Give what was handed out to the side of the checkpoints, after the storage's close."""
        for actor in self.actors:
            self._side.inherit(actor.handed_out)
