"""Times that no calendar has, in the objects of a location: no command ends with a traceback."""

import dataclasses
from pathlib import Path

import pytest
from tests.support.locations.stored_job import StoredJob

import statelog
from statelog.checkpoint.audit import audited
from statelog.checkpoint.history import read_checkpoint
from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import put_tag
from statelog.cli import main as cli
from statelog.format.checkpoint_metadata import rewrite_metadata
from statelog.format.checkpoint_record import ClaimRecord, decode_record, encode_claim
from statelog.format.segment import parse_segment
from statelog.store import PATHS, open_location

TIMES = [2**62, -(2**62), 2**63 - 1, 253_402_300_800_000]
AT = "2100-01-01"
COMMANDS = [
    ["info"], ["info", "--json"], ["checkpoints"], ["checkpoints", "--json"], ["tag"],
    ["tag", "--json"], ["audit"], ["audit", "--json"], ["verify"], ["read"],
    ["read", "--checkpoint", "forged"], ["read", "--checkpoint", AT], ["diff", "1", "2"],
]  # fmt: skip


def forge_checkpoint(location: Path, time_ms: int) -> None:
    """Give the newest checkpoint another time, with checksums that fit."""
    with statelog.open(location) as state:
        newest = state.reader().checkpoint_id
    file = location / PATHS.metadata(newest)
    data = file.read_bytes()
    trailer = parse_segment(data).trailer
    assert trailer is not None
    stored = decode_record(trailer.sections[b"CKPT"])
    rewritten = rewrite_metadata(data, dataclasses.replace(stored, created_at_ms=time_ms))
    file.write_bytes(b"".join(map(bytes, rewritten.buffers)))


@pytest.mark.parametrize("time_ms", TIMES)
def test_no_command_ends_with_a_traceback(time_ms, tmp_path, monkeypatch, capsys):  # fmt: skip
    job = StoredJob("forged times", tmp_path)
    for _ in range(3):
        job.micro_batch()
    location = tmp_path / "state"
    store = open_location(str(location))
    for kind in (TagKind.TAG, TagKind.READER):
        put_tag(store, Tag(kind=kind, name="forged", checkpoint_id=2), clock_ms=lambda: time_ms)
    with monkeypatch.context() as patch:
        patch.setattr("statelog.checkpoint.audit.wall_clock_ms", lambda: time_ms)
        patch.setattr(
            "statelog.checkpoint.audit._name", lambda at: "20260101T000000000Z-" + 16 * "0"
        )
        with audited(store, "forged") as operation:
            operation.begin()
    forge_checkpoint(location, time_ms)
    for command in COMMANDS:
        assert cli.run([command[0], str(location), *command[1:]]) in (0, 1), command
    capsys.readouterr()
    assert 0 == cli.run(["tag", str(location)])
    assert f"{time_ms} ms" in capsys.readouterr().out
    newest = max(int(path.parent.name[4:]) for path in location.glob("chk-*/_metadata"))
    claim = ClaimRecord(
        number=newest + 1, owner_id="forged", created_at_ms=time_ms, attempt="a",
        location_id=read_checkpoint(store, newest).checkpoint.timeline.location_id,
        next_number=newest + 2, newest=newest,
    )  # fmt: skip
    store.put(PATHS.metadata(newest + 1), encode_claim(claim))
    for command in (["info"], ["checkpoints"], ["verify"]):
        assert cli.run([command[0], str(location), *command[1:]]) in (0, 1), command
    assert cli.run(["changelog", str(location / PATHS.metadata(newest + 1))]) == 0
