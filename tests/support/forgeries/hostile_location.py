"""
A location with hostile text in all its names, and a call of every command to give it to.

A command that is added to the command line needs calls here: `tests/unit/cli/test_main_forged_location.py` and
`test_main_forged_places.py` fail without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from tests.support.forgeries.recordings import forge_recordings
from tests.support.jobs.recorded_job import RecordedJob

from statelog.checkpoint.audit import audited
from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import put_tag
from statelog.errors import ProcessorError
from statelog.spark.query.record import Record
from statelog.store import open_location

BAD = "\x1b[2J\x9b31m\u202e\x7f\r\nall intact: forged"
NAME = f"v{BAD}"
TICKED = f"`k{BAD}`"


class Hostile(StatefulProcessor):
    """State whose names a terminal would obey."""

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState(NAME, f"`n{BAD}` long")
        self.map = handle.getMapState("map" + BAD, f"`m{BAD}` string", "n string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for _ in rows:
            self.value.update((1,))
            self.map.updateValue((BAD,), (BAD,))
            if key[0] == "fails":
                raise ArithmeticError(BAD)
            yield Row(**{f"o{BAD}": BAD})


class Trap(Hostile):
    """What the recordings name; the location has its module."""


def hostile_location(folder: Path) -> str:
    """Return a location with hostile text in all names, in a tag and a failure."""
    job = RecordedJob(
        str(folder), Hostile(), f"{TICKED} string, n long", f"`o{BAD}` string",
        Record(keys=(("k1",),)), operator_id="op" + BAD, owner_id=BAD,
    )  # fmt: skip
    job.checkpoint_location = f"/no/such{BAD}"
    for number in range(3):
        job.run([("k1", 1), (BAD, number)], 1000 + number)
    tag = Tag(kind=TagKind.TAG, name="kept", checkpoint_id=1)
    put_tag(job.store, tag, clock_ms=lambda: 0, facts={"comment": BAD})
    with audited(open_location(str(folder)), BAD, **{BAD: BAD}) as operation:
        operation.begin()
    (folder / "audit" / "20260101T000000000Z-0123456789abcdef.begin").write_bytes(BAD.encode())
    with pytest.raises(ProcessorError):
        job.run([("fails", 1)], 2000)
    (folder / "trap.py").write_text(
        f"open({str(folder / 'ran')!r}, 'w').close()\nfrom tests.support.forgeries.hostile_location import Trap\n"
    )
    (folder / ".pdbrc").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\n")
    forge_recordings(job.store, processor="trap:Trap", source=str(folder / "trap.py"))
    return str(folder)


HOSTILE = f"{__name__}:Hostile"
CALLS: dict[str, list[list[str]]] = {
    "info": [["LOC"], ["LOC", "--json"]],
    "checkpoints": [["LOC"]],
    "demo": [["--location", "LOC"]],
    "read": [["LOC"], ["LOC", "VAR"], ["LOC", "nothing"], ["LOC", "--checkpoint", "kept"],
             ["LOC", "--to", "OUT"]],
    "get": [["LOC", "VAR", "KEY"], ["LOC", "VAR", "KEY", "more"], ["LOC", "--history", "VAR", "KEY"]],
    "diff": [["LOC", "0", "2"], ["LOC", "0", "9"]],
    "sql": [["LOC", "from nothing"], ["LOC", 'from "VAR"']],
    "audit": [["LOC"]],
    "changelog": [["LOC/chk-2/_metadata", "--values", "text"], ["LOC/chk-0/_metadata"], ["LOC/trap.py"]],
    "gc": [["LOC", "--min-age", "0s"], ["LOC", "--min-age", "0s", "--apply"]],
    "verify": [["LOC"], ["LOC", "--repair", "--min-age", "0s"], ["LOC", "--repair", "--min-age", "0s", "--apply"],
               ["LOC", "--give-up-after", "0"], ["LOC", "--give-up-after", "1", "--apply"]],
    "rewind": [["LOC"], ["LOC", "--state-location", "LOC"], ["QUERY", "--state-location", "LOC"],
               ["QUERY", "--state-location", "LOC", "--batch-id", "1", "--min-idle", "0s", "--apply"]],
    "tag": [["LOC"], ["LOC", "new"], ["LOC", "nothing", "--remove"], ["LOC", "kept", "--remove"],
            ["LOC", "kept", "--remove", "--apply"]],
    "fork": [["LOC", "NEW"], ["LOC", "NEW", "--checkpoint", "kept"], ["LOC", "NEW", "--state-only"],
             ["LOC", "NEW/statelog"], ["LOC", "NEW/statelog", "--checkpoint", "kept"], ["LOC", "NEW/statelog", "--copy"]],
    "report": [["LOC", "-o", "OUT.html"]],
    "replay": [["LOC"], ["LOC", "KEY"], ["LOC", "KEY", "--processor", "trap:Trap", "--pdb"],
               ["LOC", "KEY", "--processor", HOSTILE], ["LOC", "fails", "--processor", HOSTILE]],
    "dead-letters": [["LOC"], ["LOC", "--json"], ["LOC", "--to", "OUT.parquet"]],
    "unfreeze": [["LOC"], ["LOC", "KEY"], ["LOC", "--apply"]],
    "side-outputs": [["LOC"], ["LOC", "late"], ["LOC", "late", "--json"]],
    "broadcasts": [["LOC"], ["LOC", "--json"]],
    "publish": [["LOC", "--iceberg", "local.jobs.totals"],
                ["LOC", "--iceberg", "local.jobs.totals", "--catalog-option", "type=sql",
                 "--catalog-option", "uri=sqlite:///OUT.db", "--catalog-option", "warehouse=file://NEW"],
                ["LOC", "--delta", "NEW"], ["LOC", "--delta", "LOC"]],
    "copy": [["LOC", "NEW"], ["LOC", "NEW", "--checkpoint", "kept"]],
    "forget": [["LOC", "KEY"], ["LOC", "nobody"], ["LOC", "KEY", "--apply"], ["LOC", "KEY", "--now", "--apply"]],
    "edit": [["LOC", "--delete", "LOC/trap.py"], ["LOC", "--set", f"VAR=OUT{BAD}.parquet"]],
}  # fmt: skip
"""Calls of each command: LOC is the location, QUERY a checkpointLocation, OUT and NEW are outputs."""


def words_of(
    words: Sequence[str], *, loc: str, out: str, query: str = "", variable: str = NAME,
    key: Sequence[str] = ("k1",),
) -> list[str]:  # fmt: skip
    """Return the arguments of a call."""
    full = []
    for word in words:
        if word == "KEY":
            full += key
            continue
        for name, value in (
            ("LOC", loc),
            ("QUERY", query),
            ("VAR", variable),
            ("OUT", out),
            ("NEW", out),
        ):
            word = word.replace(name, value)
        full.append(word)
    return full
