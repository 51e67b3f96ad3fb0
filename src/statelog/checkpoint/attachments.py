"""
Attachments: objects that a checkpoint references besides its state, and their log.

The record of a micro-batch lists them.  An attachment has a kind, which is a text here: the
features that use the kinds know what is in the objects.  Whatever walks a location uses this record
only.

What the tasks of a micro-batch send in their answers becomes one object for each place (an operator
and a name).  While that object is small and young, the next micro-batch writes it again with its
additions, and names the new object in place of the one before.  So a little in each micro-batch
costs one put, and a checkpoint names few objects.  What is too large for an answer is in objects
that the task wrote.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self, TypeAlias, TypeVar

import msgspec

from statelog.checkpoint.state_stream import check_stream
from statelog.errors import (
    CheckpointError,
    ObjectNotFoundError,
    StoreError,
    UnavailableError,
    UsageError,
)
from statelog.model.handles import FileStateHandle, Json
from statelog.store import ObjectStore, read_verified

_log = logging.getLogger("statelog")
_Decoded = TypeVar("_Decoded")


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    An object that a checkpoint references besides its state.

    Args:
        kind: The kind of the attachment.
        oldest, newest: The first and the last checkpoint whose micro-batches are in it.
        path, size: Its name, and its length when it was written.
        count: Number of rows, keys or other items in it.
        at_ms: When the newest of them was written, milliseconds since 1970.
        name: A name within the kind; "" if the kind does not use names.
        operator: The operator that wrote it; "" for the whole query.
        crc: Its CRC-32C.  None if it has its own checksum and may be rewritten without a key.
        is_fresh: Whether it contains the micro-batch of this record.
        is_required: Whether the query reads it, and so cannot continue if it is damaged.
        info: What only this kind needs.
    """

    kind: str
    oldest: int
    newest: int
    path: str
    size: int
    count: int
    at_ms: int
    name: str = ""
    operator: str = ""
    crc: int | None = None
    is_fresh: bool = False
    is_required: bool = False
    info: dict[str, str | int] = {}

    @property
    def handle(self) -> FileStateHandle:
        """The handle of the object; its size is -1 (unknown) if the object may be overwritten."""
        return FileStateHandle(self.path, -1 if self.crc is None else self.size, self.crc)


@dataclass(frozen=True, slots=True)
class UnreadableAttachment:
    """An object that was skipped because it could not be read."""

    path: str
    problem: str


def of_kinds(attachments: Iterable[Attachment], *kinds: str) -> tuple[Attachment, ...]:
    """Return the attachments of some kinds, in their original order."""
    return tuple(attachment for attachment in attachments if attachment.kind in kinds)


def in_force(
    attachments: Iterable[Attachment], checkpoint_id: int | None = None
) -> dict[str, Attachment]:
    """
    Return only the newest attachment with each name.

    Args:
        attachments: Attachments of one kind, whose names have versions.
        checkpoint_id: Leave out what is newer than this checkpoint; None for nothing.
    """
    versions: dict[str, Attachment] = {}
    for attachment in sorted(attachments, key=lambda version: version.newest):
        if checkpoint_id is None or attachment.newest <= checkpoint_id:
            versions[attachment.name] = attachment
    return versions


def read_attachment(
    store: ObjectStore,
    attachment: Attachment,
    decode: Callable[[memoryview], _Decoded],
    what: str,
) -> _Decoded:
    """
    Return the content of an attachment's object, verified against its checksum.

    Args:
        store: Where the location is.
        attachment: The attachment.
        decode: Decodes the object.
        what: What it contains, for messages.

    Raises:
        CorruptionError: It is damaged.
        CheckpointError: It no longer exists (`reason` "subsumed").

    Blocks: On the store.
    """

    def decoded(data: memoryview) -> _Decoded:
        check_stream(attachment.handle, data, f"{what} {attachment.path} in {store.url}")
        return decode(data)

    try:
        return read_verified(store, attachment.path, decoded)
    except ObjectNotFoundError as error:
        raise CheckpointError(
            f"{attachment.path}, which holds {what} of checkpoint {attachment.newest}, no longer "
            f"exists in {store.url}: the query deleted it because of its age, or along with the last "
            "checkpoint that referenced it. Read a newer checkpoint",
            reason="subsumed",
        ) from error


def attachments_in(properties: Mapping[str, Json]) -> tuple[Attachment, ...]:
    """
    Return the attachments listed in the properties of a checkpoint.

    () if it has none, or others than ours.
    """
    try:
        return msgspec.convert(properties.get("attachments", ()), tuple[Attachment, ...])
    except msgspec.ValidationError:
        return ()


_Place: TypeAlias = tuple[str, str]
"""Operator and name."""
PutObject: TypeAlias = Callable[[Callable[[str], str], bytes], FileStateHandle]
"""Writes an object under a path with a unique name."""


class Contents(Protocol):
    """The items of an object, in memory."""

    def joined(self, skip: int, later: Self) -> Self | None:
        """
        Return these items followed by later ones.

        None if they cannot be in one object, or need too much memory.

        Args:
            skip: Number of the oldest items to leave out.
            later: The items that follow.
        """

    def encode(self) -> bytes:
        """Encode the items as an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentPolicy:
    """
    How a query writes, joins and retains attachments of one kind.

    Args:
        kind: The kind.
        what: What its objects contain, for messages.
        path_of: Returns the path of an object, by a unique name.
        contents: Returns the contents of what tasks sent.
        age_ms: How long items are kept, in milliseconds.
        span_ms: An object is joined with items that are at most this much younger than its oldest.
        tail_bytes: An object up to this size is joined with the items of the next micro-batch.
        objects_max: Most objects that a checkpoint names; it names all of its micro-batch.
        checkpoints_max: Most checkpoints whose objects are kept.
        is_ordered: Whether objects are in the order of their items, so that none is joined with
            what is younger than a later object.
        is_required: Whether a micro-batch fails if its items cannot be written; else they are
            missing.
        has_checksum: Whether objects have their own checksum and may be written again.
    """

    kind: str
    what: str
    path_of: Callable[[str], str]
    contents: Callable[[Sequence[bytes]], Contents]
    age_ms: float
    span_ms: float = math.inf
    tail_bytes: int = 0
    objects_max: int = sys.maxsize
    checkpoints_max: int = sys.maxsize
    is_ordered: bool = False
    is_required: bool = True
    has_checksum: bool = False


@dataclass(frozen=True, slots=True)
class Addition:
    """
    What tasks add to a micro-batch's attachments.

    Args:
        data: What tasks sent, to be written by the driver.
        file: The object that a task wrote instead, or None.
        count: Number of items.
        name, operator: The place; see `Attachment`.
        info: See `Attachment`; the numbers of what is sent to one place are added.
    """

    data: tuple[bytes, ...] = ()
    file: FileStateHandle | None = None
    count: int = 0
    name: str = ""
    operator: str = ""
    info: Mapping[str, int] = field(default_factory=dict)


class _Batch(NamedTuple):
    """The items that one micro-batch added to an object: their time and their number."""

    at_ms: int
    checkpoint_id: int
    items: int


@dataclass(frozen=True, slots=True)
class _Tail:
    """
    The newest object of one place, which may still grow.

    Args:
        path: Its name.
        contents: Its items, oldest first.
        batches: The micro-batches in it, oldest first.
    """

    path: str
    contents: Contents
    batches: tuple[_Batch, ...]


class AttachmentLog:
    """
    The attachments of one kind in the checkpoints of one run.

    `entries` writes before the commit, and `committed` notes the commit: what a failed commit wrote
    is never joined.

    Args:
        policy: How they are written, joined and kept.
        put: Writes an object.

    Thread: The caller's; one at a time.
    """

    def __init__(self, policy: AttachmentPolicy, put: PutObject) -> None:
        self._policy = policy
        self._put = put
        # Of the committed checkpoint, and of the one being made.  A commit replaces the first.
        self._tails: dict[_Place, _Tail] = {}
        self._next: dict[_Place, _Tail] = {}

    def entries(
        self,
        before: Sequence[Attachment],
        additions: Sequence[Addition],
        checkpoint_id: int,
        now_ms: int,
    ) -> tuple[Attachment, ...]:
        """
        Write a micro-batch's items, and return the attachments that its checkpoint references.

        Args:
            before: The attachments of the checkpoint before, of all kinds.
            additions: What the tasks add.
            checkpoint_id: The checkpoint being made.
            now_ms: The wall clock.

        Raises:
            StoreError, UnavailableError: A required attachment could not be written: the
                micro-batch must not be committed.

        Blocks: For the store, where tasks sent items.
        """
        policy = self._policy
        fresh = []
        self._next = dict(self._tails)
        # 1. What the checkpoint before named, without what is too old.
        present = {
            attachment.path: msgspec.structs.replace(attachment, is_fresh=False)
            for attachment in of_kinds(before, policy.kind)
            if attachment.at_ms > now_ms - policy.age_ms
        }
        # 2. What is new, by place: several tasks may send to one.
        places: dict[_Place, list[Addition]] = {}
        for addition in additions:
            places.setdefault((addition.operator, addition.name), []).append(addition)
        for place, group in places.items():
            sent = [addition for addition in group if addition.data]
            if sent:
                batch = _Batch(now_ms, checkpoint_id, sum(addition.count for addition in sent))
                fresh += self._write(place, sent, batch, present)
            # 3. Objects that tasks wrote are named as they are, and never joined.
            for addition_of_place in group:
                if addition_of_place.file is not None:
                    batches = (_Batch(now_ms, checkpoint_id, addition_of_place.count),)
                    fresh.append(
                        self._attachment([addition_of_place], addition_of_place.file, batches)
                    )
                    # A later item must not move in front of this object.
                    if policy.is_ordered:
                        self._next.pop(place, None)
        return self._bounded([*present.values(), *fresh])

    def committed(self) -> None:
        """Record that the checkpoint of the last call of `entries` was committed."""
        self._tails = self._next

    def _write(
        self, place: _Place, sent: Sequence[Addition], batch: _Batch, present: dict[str, Attachment]
    ) -> list[Attachment]:
        """
        Write the items that the tasks returned.

        With the items of the tail, which is then no longer kept, if it fits.
        """
        policy = self._policy
        tail = self._tails.get(place)
        # Join the items with the tail if both fit in one object; else begin a new object with them.
        later = [data for addition in sent for data in addition.data]
        try:
            contents = policy.contents(later)
            joined = None if tail is None else self._joined(tail, contents, batch)
            contents, batches, data = joined or (contents, (batch,), contents.encode())
            handle = self._put(policy.path_of, data)
        except (StoreError, UnavailableError, UsageError) as error:
            if policy.is_required:
                raise
            _log.warning(
                "checkpoint %d will not contain %s: %s", batch.checkpoint_id, policy.what, error
            )
            return []
        # The new object has the tail's items, so the checkpoint names it in place of the tail.
        if tail is not None and joined is not None:
            present.pop(tail.path, None)
        self._next.pop(place, None)
        # Small enough to be joined with the next micro-batch.
        if len(data) <= policy.tail_bytes:
            self._next[place] = _Tail(handle.path, contents, batches)
        return [self._attachment(sent, handle, batches)]

    def _joined(
        self, tail: _Tail, later: Contents, batch: _Batch
    ) -> tuple[Contents, tuple[_Batch, ...], bytes] | None:
        """Join the recent items of the tail with later ones, if they fit into one object."""
        policy = self._policy
        old = [earlier for earlier in tail.batches if earlier.at_ms <= batch.at_ms - policy.age_ms]
        young = tail.batches[len(old) :]
        # What is in one object is dropped together once it is not written again: about the same age.
        if not young or batch.at_ms - young[0].at_ms > policy.span_ms:
            return None
        both = tail.contents.joined(sum(earlier.items for earlier in old), later)
        if both is None:
            return None
        data = both.encode()
        return (both, (*young, batch), data) if len(data) <= policy.tail_bytes else None

    def _attachment(
        self, additions: Sequence[Addition], handle: FileStateHandle, batches: Sequence[_Batch]
    ) -> Attachment:
        info: Counter[str] = Counter()
        for addition in additions:
            info.update(addition.info)
        return Attachment(
            kind=self._policy.kind,
            name=additions[0].name,
            operator=additions[0].operator,
            oldest=batches[0].checkpoint_id,
            newest=batches[-1].checkpoint_id,
            path=handle.path,
            size=handle.size_bytes,
            crc=None if self._policy.has_checksum else handle.crc32c,
            count=sum(batch.items for batch in batches),
            at_ms=batches[-1].at_ms,
            is_fresh=True,
            info={name: value for name, value in info.items() if value},
        )

    def _bounded(self, every: Sequence[Attachment]) -> tuple[Attachment, ...]:
        """Return the newest attachments up to the limit, but always all from this micro-batch."""
        policy = self._policy
        # Two bounds: of checkpoints, and of objects.  What this micro-batch wrote is never dropped.
        ids = sorted({attachment.newest for attachment in every})[-policy.checkpoints_max :]
        every = [attachment for attachment in every if attachment.newest in ids]
        dropped = [
            attachment for attachment in every[: -policy.objects_max] if not attachment.is_fresh
        ]
        if dropped:
            _log.warning(
                "%d %s of checkpoint %d and earlier were dropped, because a location stores at most %d such "
                "objects; set a shorter age to retain fewer",
                sum(attachment.count for attachment in dropped),
                policy.what,
                dropped[-1].newest,
                policy.objects_max,
            )
        return tuple(attachment for attachment in every if attachment not in dropped)
