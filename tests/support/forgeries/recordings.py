"""Recordings as someone writes them who may write to the location."""

from __future__ import annotations

from typing import Any

import msgspec

from statelog.extensions.recordings.format import TaskRecording, encode_file, encode_recording
from statelog.extensions.recordings.location import list_recordings, read_recording
from statelog.store import ObjectStore

NAMES = (
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31mred",
    "a\r\nall intact",
    "\u202etxt.exe",
    "\x7f\x00\x08",
    "\u2028\u2029\x85",
    '"""\nraise SystemExit(9)\n"""',
    "'; raise SystemExit(9) #",
    "\\\nraise SystemExit(9)",
    "[link=file:///etc/passwd]x[/link]",
    "\udc9b",
)
"""Names that a terminal, a log or Python would obey."""


def forge_recordings(store: ObjectStore, **changes: Any) -> None:
    """Write all recordings of a location again with other fields, and the right checksums."""
    for stored in list_recordings(store):
        tasks = read_recording(store, stored)
        put_recording(
            store, stored.path, [msgspec.structs.replace(task, **changes) for task in tasks]
        )


def put_recording(store: ObjectStore, path: str, tasks: list[TaskRecording]) -> None:
    store.put(path, encode_file([encode_recording(task) for task in tasks]))
