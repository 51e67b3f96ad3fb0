"""Both objects of an audit line, as files that must be read for ever."""

import shutil
from pathlib import Path

from statelog.checkpoint.audit import BeginPart, EndPart, encoded, read_audit_log
from statelog.store import LocationPaths, open_store
from statelog.store.paths import parse_audit_part

VECTORS = Path(__file__).parent / "vectors"
LINE = "20231114T221320000Z-0123456789abcdef"
BEGIN = BeginPart(
    version=1,
    operation="gc",
    arguments={"min_age": "1h"},
    user="ann",
    host="host ü",
    process=7,
    program="statelog",
    statelog="0.2.0",
    location="s3://bucket/jobs/totals",
    began_at_ms=1_700_000_000_000,
)
END = EndPart(
    version=1,
    outcome="done",
    result={"deleted": 3, "not_deleted": 0},
    error="",
    ended_at_ms=1_700_000_000_500,
)


def test_an_audit_line_is_read(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    for part in ("begin", "end"):
        shutil.copy(VECTORS / f"audit_{part}_v1.bin", tmp_path / "audit" / f"{LINE}.{part}")
    (line,) = read_audit_log(open_store(tmp_path)).lines
    assert (LINE, BEGIN, END, "") == (line.name, line.begin, line.end, line.problem)


def test_an_audit_line_is_written_as_before() -> None:
    assert (VECTORS / "audit_begin_v1.bin").read_bytes() == encoded(BEGIN)
    assert (VECTORS / "audit_end_v1.bin").read_bytes() == encoded(END)


def test_the_names_of_audit_lines() -> None:
    assert (LINE, "end") == parse_audit_part(LocationPaths("a").audit_part(LINE, "end"))
    for name in (f"audit/{LINE}", f"audit/{LINE}.begin/x", "audit/x.begin", f"other/{LINE}.end"):
        assert parse_audit_part(name) is None
