"""
Versions of a Delta table whose versions are checkpoints of a location, as actions of its log.

A version is what the actions before it and its own ones make.  Its checkpoint in the log has the same in
one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from statelog.errors import CorruptionError
from statelog.format.bounds import decode_json
from statelog.format.delta_log import (
    Action,
    Add,
    Metadata,
    Protocol,
    Remove,
    Transaction,
    has_local_times,
)
from statelog.model import Json
from statelog.operations.publish_table import CHECKPOINT
from statelog.runtime.clock import wall_clock_ms

_APPLICATION: Final = "statelog"
_FACTS: Final = "statelog."
CHECKPOINTS: Final = "statelog.checkpoints"
"""Property of the table with the version of each checkpoint, in JSON."""
TAGS: Final = "statelog.tags"
"""Property of the table with the version of each tag, in JSON."""
ATTEMPT: Final = "statelog.attempt"
_VECTORS: Final = "deletionVectors"
LOCAL_TIMES: Final = "timestampNtz"
_VERSIONS: Final = msgspec.json.Decoder(dict[int, int])
_TAGGED: Final = msgspec.json.Decoder(dict[str, int])
_Numbers = TypeVar("_Numbers")


@dataclass(frozen=True, slots=True)
class Version:
    """
    A version of the table.

    Args:
        number: Its number.
        protocol: What readers must know.
        metadata: The table's metadata.
        files: Its files by path.
        facts: What its commit says of it, among it the checkpoint.
        data: Its file in the log.
    """

    number: int
    protocol: Protocol
    metadata: Metadata
    files: Mapping[str, Add]
    facts: Mapping[str, str]
    data: bytes = b""

    @property
    def checkpoint(self) -> int | None:
        """The checkpoint of the location; None without one, or if another writer committed the version."""
        text = self.facts.get(CHECKPOINT, "")
        return int(text) if text.isdecimal() else None

    @property
    def versions(self) -> dict[int, int]:
        """The version of each checkpoint that is kept, ascending."""
        versions = self._property(CHECKPOINTS, _VERSIONS)
        return dict(sorted(versions.items(), key=lambda pair: pair[1]))

    @property
    def tags(self) -> dict[str, int]:
        """The version of each tag."""
        return self._property(TAGS, _TAGGED)

    def _property(self, name: str, decoder: msgspec.json.Decoder[_Numbers]) -> _Numbers:
        text = self.metadata.configuration.get(name, "{}")
        try:
            return decode_json(text, decoder)
        except msgspec.DecodeError as error:
            raise CorruptionError(f"the table's property {name} is damaged: {error}") from error


def replayed(
    number: int, before: Sequence[Action], last: Sequence[Action], data: bytes
) -> Version | None:
    """
    Return a version, or None if the actions lack its metadata.

    Args:
        number: Its number.
        before: The actions before it.
        last: Its own actions.
        data: Its file in the log.
    """
    files: dict[str, Add] = {}
    protocol, metadata = None, None
    for action in (*before, *last):
        protocol, metadata = action.protocol or protocol, action.meta_data or metadata
        if action.remove is not None:
            present = files.get(action.remove.path)
            if present and present.deletion_vector == action.remove.deletion_vector:
                del files[action.remove.path]
        if action.add is not None:
            files[action.add.path] = action.add
    if protocol is None or metadata is None:
        return None
    facts = {
        name: text
        for action in last
        for name, text in (action.commit_info or {}).items()
        if name.startswith(_FACTS) and isinstance(text, str)
    }
    return Version(number, protocol, metadata, files, facts, data)


def commit_actions(before: Version | None, after: Version) -> list[Action]:
    """Return what makes one version the next one."""
    info: dict[str, Json] = {
        "timestamp": wall_clock_ms(),
        "operation": "WRITE" if before else "CREATE TABLE",
        "operationParameters": {},
        "engineInfo": _APPLICATION,
        **after.facts,
    }
    actions = [Action(commit_info=info), Action(meta_data=after.metadata)]
    if before is None or before.protocol != after.protocol:
        actions.append(Action(protocol=after.protocol))
    if after.checkpoint is not None:
        actions.append(Action(txn=_transaction(after.checkpoint)))
    for path, file in () if before is None else before.files.items():
        stays = after.files.get(path)
        if stays is None or stays.deletion_vector != file.deletion_vector:
            gone = Remove(
                path=path,
                deletion_timestamp=wall_clock_ms(),
                data_change=True,
                deletion_vector=file.deletion_vector,
            )
            actions.append(Action(remove=gone))
    for path, file in after.files.items():
        present = None if before is None else before.files.get(path)
        if present is None or present.deletion_vector != file.deletion_vector:
            actions.append(Action(add=file))
    return actions


def checkpoint_actions(version: Version) -> list[Action]:
    """Return what a version consists of."""
    actions = [Action(protocol=version.protocol), Action(meta_data=version.metadata)]
    if version.checkpoint is not None:
        actions.append(Action(txn=_transaction(version.checkpoint)))
    return [*actions, *(Action(add=file) for file in version.files.values())]


def _transaction(checkpoint: int) -> Transaction:
    return Transaction(app_id=_APPLICATION, version=checkpoint)


def protocol_of(schema: str) -> Protocol:
    """Return what a reader of a table with a schema must know."""
    features = (_VECTORS, LOCAL_TIMES) if has_local_times(schema) else (_VECTORS,)
    return Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=features,
        writer_features=features,
    )


def compact_json(value: Mapping[str, int]) -> str:
    """Return numbers by name as JSON."""
    return json.dumps(value, separators=(",", ":"))
