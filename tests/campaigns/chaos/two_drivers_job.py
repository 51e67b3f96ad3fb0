"""
A driver without Spark: it claims a location and commits rows, and pauses or dies between two requests.

Row n is followed by row n + 1.  Each commit contains some rows and the digest of all rows before, so that
a log whose parts are of two histories is found.
"""

import hashlib
import itertools
import json
import os
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.campaigns.chaos.request_log import append, log_requests
from tests.support.locations import checkpoints

from statelog.errors import FencedError, StatelogError
from statelog.model import CompletedCheckpoint, KeyGroupRange, TaskStateSnapshot
from statelog.store import ObjectStore, open_location

ALL = KeyGroupRange(0, 7)
EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Place:
    """The location of the drivers, with the options of its store and the file of the journal."""

    url: str
    options: dict[str, Any]
    journal: Path

    @property
    def requests(self) -> Path:
        """The journal of the requests for entries."""
        return self.journal.with_suffix(".requests")

    def open(self) -> ObjectStore:
        return open_location(self.url, options={**self.options, "fsync": False})

    def note(self, **entry: object) -> None:
        """Append an entry to the journal, in one write."""
        append(self.journal, {"pid": os.getpid(), **entry})


class Interrupted:
    """A store whose user pauses or dies before or after a request, by chance."""

    def __init__(self, store: ObjectStore, chance: random.Random, pauses: float, kills: float):
        self._store, self._chance = store, chance
        self._pauses, self._kills = pauses, kills

    def __getattr__(self, name: str) -> object:
        attribute = getattr(self._store, name)
        return self._interrupted(attribute) if callable(attribute) else attribute

    def _interrupted(self, call: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object) -> object:
            self._strike()
            answer = call(*arguments)
            if isinstance(answer, Iterator):
                answer = list(answer)
            self._strike()
            return answer

        return run

    def _strike(self) -> None:
        drawn = self._chance.random()
        if drawn < self._kills:
            os.kill(os.getpid(), signal.SIGKILL)
        elif drawn < self._kills + self._pauses:
            os.kill(os.getpid(), signal.SIGSTOP)  # the campaign continues it some time later


def digest_of(before: str, values: list[bytes]) -> str:
    """Return the digest of a history that some rows follow."""
    return hashlib.sha256(b"\0".join([before.encode(), *values])).hexdigest()


def check_history(store: ObjectStore, checkpoint: CompletedCheckpoint | None) -> list[str]:
    """Return the digest after each commit; raise `AssertionError` if rows are missing or mixed."""
    digests, upto = [EMPTY], 0
    for handle in () if checkpoint is None else checkpoint.log:
        changes = checkpoints.read_log(store, [handle])
        values = [change.value for change in changes]
        for value in values:
            row = json.loads(value)
            assert row["row"] == upto + 1, f"row {row['row']} follows row {upto}"
            assert row["before"] == digests[-1], f"row {row['row']} is of another history"
            upto += 1
        digests.append(digest_of(digests[-1], values))
    if checkpoint is not None:
        assert checkpoint.properties == {"upto": upto, "digest": digests[-1]}
    return digests


def drive(place: Place, seed: int, upto: int, pauses: float, kills: float) -> None:
    """Commit rows until row *upto*, or until another driver takes over."""
    chance = random.Random(seed)
    log_requests(place.requests)
    checkpoints.names = (uuid.uuid4().hex for _ in itertools.count())
    store: Any = Interrupted(place.open(), chance, pauses, kills)
    try:
        _commit_rows(place, store, chance, upto)
    except FencedError as error:
        place.note(event="fenced", error=str(error))
    except StatelogError as error:
        place.note(event="failed", kind=type(error).__name__, error=str(error))
    except BaseException as error:
        place.note(event="wrong", error=repr(error))
        raise


def _commit_rows(place: Place, store: ObjectStore, chance: random.Random, upto: int) -> None:
    driver = checkpoints.coordinator(store, f"driver-{os.getpid()}", retained=2)
    driver.claim()
    newest = driver.restore()
    digest = check_history(store, newest)[-1]
    row = 0 if newest is None else int(newest.properties["upto"])  # type: ignore[arg-type]
    place.note(event="restored", epoch=driver.epoch, row=row, digest=digest)
    while row < upto:
        checkpoint_id = driver.next_checkpoint_id
        rows = range(row + 1, row + 1 + chance.randint(1, 3))
        texts = [json.dumps({"row": row, "before": digest, "by": os.getpid()}) for row in rows]
        changes = [(0, text.encode()) for text in texts]
        write = chance.choice(
            [checkpoints.log_inline, lambda *log: checkpoints.log_in_file(store, *log)]
        )
        log = write(ALL, [changes], checkpoint_id)
        driver.trigger(checkpoint_id, [ALL])
        driver.acknowledge(checkpoint_id, TaskStateSnapshot(ALL, log))
        row, digest = rows[-1], digest_of(digest, [value for _, value in changes])
        driver.complete(checkpoint_id, properties={"upto": row, "digest": digest})
        place.note(event="committed", checkpoint=checkpoint_id, row=row, digest=digest)
        driver.clean_up()


def check_end(place: Place) -> None:
    """Check the whole history, and that it contains each commit that a driver was told of."""
    store = place.open()
    reader = checkpoints.coordinator(store, "reader", retained=2)
    reader.claim()
    digests = check_history(store, reader.restore())
    lines = [json.loads(line) for line in place.journal.read_text().splitlines()]
    committed = [line for line in lines if line["event"] == "committed"]
    lost = [line for line in committed if line["digest"] not in digests]
    assert not lost, f"committed, and not in the history: {lost}"
    ids = [line["checkpoint"] for line in committed]
    assert len(ids) == len(set(ids)), "two drivers were told that they committed one checkpoint"
    wrong = [line for line in lines if line["event"] == "wrong"]
    assert not wrong, wrong
    place.note(event="checked", commits=len(digests) - 1)
