"""Random histories of writers with local copies on a real disk, from a seed."""

import datetime as dt
import os
import random
from pathlib import Path

import pytest
from tests.support.changelogs import ALL, ScriptedStore, values_of

from statelog import changelog as cl
from statelog.model import FileStateHandle


class WriterHistory:
    """Two writers, checkpoints in flight, confirmations and aborts, and a store that fails."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.store = ScriptedStore()
        self.folder = folder
        self.config = cl.LocalRecoveryConfig((str(folder),))
        options = cl.ChangelogOptions(
            preemptive_persist_threshold_bytes=40,
            upload_next_attempt_delay=dt.timedelta(milliseconds=1),
        )
        self.storage = cl.FsStateChangelogStorage(
            self.store, options=options, job_id="job", local_recovery=self.config
        )
        self.writers = [self.storage.create_writer(name, ALL) for name in ("one", "two")]
        self.appended: list[list[tuple[int, bytes]]] = [[], []]  # (set number, value)
        self.lowest = [0, 0]
        # checkpoint -> for each writer: from, to, result
        self.open: dict[int, list[tuple[int, int, cl.SnapshotResult[cl.ChangelogStateHandle]]]] = {}
        self.confirmed = 0
        self.last_good: list[tuple[int, int, cl.SnapshotResult[cl.ChangelogStateHandle]]] = []
        self.next_id = 1

    def append(self) -> None:
        index = self.rng.randrange(2)
        writer, value = self.writers[index], b"%d" % self.rng.randrange(10**12)
        number = writer.next_sequence_number().value
        writer.append(1, value)
        self.appended[index].append((number, value))
        writer.next_sequence_number()

    def checkpoint(self) -> None:
        number, self.next_id = self.next_id, self.next_id + 1
        if self.rng.random() < 0.3:
            self.store.put_errors = [OSError("passing")]
        parts = []
        for index, writer in enumerate(self.writers):
            upto = writer.next_sequence_number().value
            start = self.rng.randint(self.lowest[index], upto)
            result = writer.persist(start, number).result(60)
            parts.append((start, upto, result))
        self.open[number] = parts

    def confirm(self) -> None:
        if self.open:
            number = self.rng.choice(sorted(self.open))
            self.confirmed, self.last_good = number, self.open[number]
            for writer, (start, upto, _) in zip(self.writers, self.last_good, strict=True):
                writer.confirm(start, upto, number)
            self.open = {
                checkpoint: parts for checkpoint, parts in self.open.items() if checkpoint > number
            }

    def abort(self) -> None:
        if self.open:
            number = self.rng.choice(sorted(self.open))
            for writer, (start, upto, _) in zip(self.writers, self.open.pop(number), strict=True):
                writer.reset(start, upto, number)

    def truncate(self) -> None:
        """Up to where the last good checkpoint and every open one begin, as a job would."""
        for index, writer in enumerate(self.writers):
            starts = [parts[index][0] for parts in [*self.open.values(), self.last_good] if parts]
            if starts:
                self.lowest[index] = max(self.lowest[index], min(starts))
                writer.truncate(self.lowest[index])

    def check(self) -> None:
        """Check that each possible restore reads what was appended, from local copies."""
        for parts in [*self.open.values(), self.last_good]:
            for index, (start, upto, result) in enumerate(parts):
                assert result.job_manager_owned is not None
                expected = [v for n, v in self.appended[index] if start <= n < upto]
                report = cl.ReadReport()
                changes = self.storage.read(
                    result.job_manager_owned, local=result.task_local, report=report
                )
                assert expected == values_of(changes)
                assert (0, []) == (report.remote_files, report.set_aside)

    def run(self, steps: int) -> None:
        moves = (
            [self.append] * 4 + [self.checkpoint] * 3 + [self.confirm, self.abort, self.truncate]
        )
        for _ in range(steps):
            self.rng.choice(moves)()
            self.check()
        while self.open:
            self.abort()
        for writer in self.writers:
            writer.persist(self.lowest[self.writers.index(writer)]).result(60)
            writer.truncate(writer.next_sequence_number())
        self.check()
        self.storage.close()

    def files_of_the_last_checkpoint(self) -> set[str]:
        return {
            os.path.basename(entry.handle.path)
            for _, _, result in self.last_good
            if result.task_local is not None
            for entry in result.task_local.handles_and_offsets
            if isinstance(entry.handle, FileStateHandle)
        }


@pytest.mark.parametrize("seed", range(12))
def test_what_a_restore_may_want_is_there_and_nothing_else_stays(seed, tmp_path):
    history = WriterHistory(seed, tmp_path)
    history.run(40)
    folder = Path(history.config.folder_of("job"))
    on_disk = set(os.listdir(folder)) if folder.exists() else set()
    assert history.files_of_the_last_checkpoint() == on_disk
