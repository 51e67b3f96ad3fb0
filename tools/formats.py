"""
Fill the tables of stored fields in docs, from the docstrings of their classes.

A field is absent from the stored JSON where it has its default, which the docstrings call None or "".
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import python_api
from blocks import filled

from statelog.checkpoint.attachments import Attachment
from statelog.checkpoint.audit import BeginPart, EndPart
from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.extensions.recordings.format import TaskRecording
from statelog.format.checkpoint_record import ClaimRecord

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.values.key_group_vectors import VECTORS  # noqa: E402

DOCS = ROOT / "docs"
KINDS: tuple[type[msgspec.Struct], ...] = (
    BatchRecord,
    OperatorRecord,
    Attachment,
    ClaimRecord,
    TaskRecording,
    BeginPart,
    EndPart,
)


def checkpoint_page() -> str:
    """Return docs/reference/formats/checkpoint_metadata.md with fresh tables."""
    return filled(DOCS / "reference" / "formats" / "checkpoint_metadata.md", _table)


def state_page() -> str:
    """Return docs/reference/formats/state.md with a fresh table of the fields of a recording."""
    return filled(DOCS / "reference" / "formats" / "state.md", _table)


def audit_page() -> str:
    """Return docs/how-to/audit-log.md with fresh tables."""
    return filled(DOCS / "how-to" / "audit-log.md", _table)


def key_groups_page() -> str:
    """Return docs/reference/formats/key-groups.md with a fresh table of vectors."""
    return filled(DOCS / "reference" / "formats" / "key-groups.md", _table)


def _table(name: str) -> str:
    if name == "vectors":
        return _vectors()
    (kind,) = (kind for kind in KINDS if kind.__name__ == name)
    return "".join(["| Field | Meaning |\n|---|---|\n", *_rows(kind)])


def _rows(kind: type[msgspec.Struct]) -> Iterator[str]:
    stored = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    for names, text in python_api.arguments_of(kind):
        fields = ", ".join(f"`{stored[name]}`" for name in names.split(", "))
        meaning = " ".join(text.rstrip(".").split())
        yield f"| {fields} | {python_api.escaped(meaning)} |\n"


def _vectors() -> str:
    def row(columns: Any, value: int, key_group: int) -> str:
        key = ", ".join(f"{kind} {text}" for kind, text in columns)
        return f"| `{key}` | `{value}` | {key_group} |\n"

    head = "| Key | xxhash64 | Key group |\n|---|---|---|\n"
    return "".join([head, *(row(*vector) for vector in VECTORS)])
