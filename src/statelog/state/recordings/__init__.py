"""
Recordings: what some keys of a query saw, kept next to the state to be replayed.

    format     recordings of tasks as bytes, the state of some keys as columns, and back
    step       one key in one micro-batch: input, state before and after, calls, output
    location   the recordings of a location: list, find by key, remove a key
    dead_letters   the calls that failed and were left out, as a table

Recorded data is the data of the query: it is as personal as the rows and the state are.
Format: docs/reference/formats/recording.md.
"""

from statelog.state.recordings.format import Failure, TaskRecording, decode_file, encode_file
from statelog.state.recordings.location import (
    ForgottenRecordings,
    StoredRecording,
    UnreadableRecording,
    forget_key,
    list_recordings,
    objects_with_key,
    read_recording,
    read_recordings,
    steps_of_key,
)
from statelog.state.recordings.step import Call, RecordedStep, steps_of

__all__ = [
    "Call",
    "Failure",
    "ForgottenRecordings",
    "RecordedStep",
    "StoredRecording",
    "TaskRecording",
    "UnreadableRecording",
    "decode_file",
    "encode_file",
    "forget_key",
    "list_recordings",
    "objects_with_key",
    "read_recording",
    "read_recordings",
    "steps_of",
    "steps_of_key",
]
