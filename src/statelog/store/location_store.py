"""
The store of a state location, which can be a fork.

A fork refers to objects of its parent by names below `parent/<fork id>/`.  They are read in the
parent's location, which the object `parents/<fork id>` of the fork names, and never written or
deleted there.

That object alone leads nowhere.  Its URL is followed only within the bucket or host of the fork, or
to a parent that the caller named, which is checked before a connection is made; and the parent must
have a tag of the fork that names this location, which only a caller who can write to the parent can
make.  See `statelog.store.parents`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from statelog.arguments import instance
from statelog.errors import (
    CheckpointError,
    InvalidOptionsError,
    ObjectNotFoundError,
    UsageError,
)
from statelog.redaction import redacted
from statelog.store.api import Buffers, ObjectInfo, ObjectStore, StoreWrapper
from statelog.store.object_store import open_store
from statelog.store.parents import ENVIRONMENT as PARENTS_ENVIRONMENT
from statelog.store.parents import OPTION as PARENTS
from statelog.store.parents import (
    ParentReference,
    confirmed_by,
    is_named,
    is_same_location,
    may_follow,
    named_parents,
)
from statelog.store.paths import PATHS
from statelog.store.requests import read_tail
from statelog.store.verified import get_again

OPTION: Final = "encryption"
"""The store option with the key source of an encrypted location."""
ENVIRONMENT: Final = "STATELOG_ENCRYPTION"
"""The environment variable with the key source if the option is not set."""
MAGIC: Final = b"STLGENC1"
"""The first bytes of an encrypted object."""
_PREFIX: Final = "parent/"
_PARENT: Final = re.compile(r"parent/([0-9a-f]{16})/(.+)")
_FORKS_MAX: Final = 32
"""Maximum depth of forks of forks; a longer chain is forged or is a cycle."""


def is_fork_id(name: str) -> bool:
    """Return whether *name*, an object's name below `parents/`, is a fork id."""
    return _PARENT.fullmatch(parent_path(name, "x")) is not None and "/" not in name


def parent_path(fork_id: str, path: str) -> str:
    """Return the name with which a fork refers to *path* in its parent."""
    return f"{_PREFIX}{fork_id}/{path}"


def parse_parent_path(path: str) -> tuple[str, str] | None:
    """Parse the fork id and the name in the parent from *path*; None if it is not in a parent."""
    match = _PARENT.fullmatch(path)
    return (match[1], match[2]) if match else None


class LocationStore(StoreWrapper):
    """
    An `ObjectStore` in which names below `parent/` refer to objects of a fork's parents.

    Picklable: the copy opens its own clients.

    Args:
        store: The store of the location itself; it alone is listed.
        options: Options of its client, which its parents in stores of the same kind share, and
            of its encryption, which all parents share; and the parents that the caller names,
            see `named_parents`.
        depth: Number of forks above this one.

    `before_change` is called before each change of the location, unless it is None.

    Thread: any, as for every store.
    """

    before_change: Callable[[], None] | None = None

    def __init__(
        self, store: ObjectStore, options: Mapping[str, object] | None = None, depth: int = 0
    ) -> None:
        super().__init__(store)
        self._options = dict(options or {})
        # Kept, because a copy may be used in a process of another environment.
        self._options[PARENTS] = self._named = named_parents(options)
        self._depth = depth
        self._parents: dict[str, LocationStore] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return LocationStore, (self._store, self._options, self._depth)

    def name_parent(self, location: str) -> None:
        """Allow a parent in a different bucket, or in a store that the caller opened explicitly."""
        self._options[PARENTS] = self._named = named_parents({PARENTS: (*self._named, location)})

    def parent(self, fork_id: str) -> LocationStore:
        """
        Return the store of one of the parents.

        Raises:
            CheckpointError: The location has no such parent, or its place was not named, or the
                parent has no tag of this fork that names this location (`reason` "parent").
            StoreError: A store failed.

        Blocks: On both stores, at the first use.
        """
        store = self._parents.get(fork_id)
        if store is None:
            store = self._parents[fork_id] = self._opened(fork_id)
        return store

    def parent_ids(self) -> list[str]:
        """Return the ids of the parents that the location references."""
        listed = self._store.list(PATHS.parents)
        names = [info.path.removeprefix(f"{PATHS.parents}/") for info in listed]
        return [name for name in names if is_fork_id(name)]

    def released_parent(self, fork_id: str) -> tuple[ObjectStore, tuple[str, ...]] | None:
        """
        Return a parent's store, and its tags that pin a checkpoint for this fork.

        Returns:
            None if the location has no such reference, or the parent's directory is gone.

        Raises:
            CheckpointError: The reference is damaged (`reason` "damaged"), or the parent's place
                was not named, or its tag of the fork names another location ("parent").
            StoreError: The store failed.

        Blocks: On the stores.
        """
        try:
            reference = ParentReference.read(self._store, fork_id)
            self._check_place(reference, fork_id)
            store = _encrypted_of(reference.location, self._options_of(reference))
        except (ObjectNotFoundError, UsageError):
            return None
        tags = {path: confirmed_by(store, path) for path in _tags_of(store, fork_id)}
        for path, location in tags.items():
            if not self._is_named_by(location):
                raise CheckpointError(
                    f"{path} of {store.url} pins a checkpoint for the fork {location or 'without a name'}, "
                    f"not for {self.url}, so statelog does not delete it. If this fork was moved, delete "
                    f"the tag by name: `statelog tag {store.url} {fork_id} --kind fork --remove --apply`",
                    reason="parent",
                    path=PATHS.parent(fork_id),
                )
        return store, tuple(tags)

    def _is_named_by(self, location: str | None) -> bool:
        return location is not None and is_same_location(location, self.url)

    def _check_place(self, reference: ParentReference, fork_id: str) -> None:
        """Check, before connecting, that the location of a parent may be opened."""
        if not may_follow(self.url, reference.location, self._named):
            raise CheckpointError(
                f"{self.url} says that it is a fork of {redacted(reference.location)}, which is in "
                "a different bucket or store. statelog does not open a location that only the fork "
                f"names: if you trust it, pass it with --parent URL on the command line, with the store "
                f"option {PARENTS}, or with the environment variable {PARENTS_ENVIRONMENT}",
                reason="parent",
                path=PATHS.parent(fork_id),
            )

    def _opened(self, fork_id: str) -> LocationStore:
        try:
            reference = ParentReference.read(self._store, fork_id)
        except ObjectNotFoundError as error:
            raise CheckpointError(
                f"{self.url} refers to objects of a parent ({_PREFIX}{fork_id}/), but does not contain "
                f"{PATHS.parent(fork_id)}, which records the parent's location: copy the whole location, or use "
                "`statelog copy`, which makes a fork independent",
                reason="parent",
                path=PATHS.parent(fork_id),
            ) from error
        reference = self._where_it_is_now(reference, fork_id)
        options = self._options_of(reference)
        if self._depth >= _FORKS_MAX:
            raise CheckpointError(
                f"{self.url} is number {self._depth} in a chain of forks, or the chain is a cycle; "
                "`statelog copy` makes a fork independent",
                reason="parent",
            )
        self._check_place(reference, fork_id)
        try:
            parent = _encrypted_of(reference.location, options)
        except UsageError as error:
            raise self._refused(reference, fork_id, str(error)) from error
        tags = _tags_of(parent, fork_id)
        if not tags:
            raise self._refused(reference, fork_id, "it does not contain a tag of this fork")
        if not is_named(reference.location, self._named):
            self._check_agrees(parent, tags, fork_id)
        return LocationStore(parent, options, self._depth + 1)

    def _where_it_is_now(self, reference: ParentReference, fork_id: str) -> ParentReference:
        """Return a reference to the location that the caller specified, if it contains the tag."""
        stored = reference.location
        for url in sorted(self._named, key=lambda url: not is_same_location(url, stored)):
            moved = msgspec.structs.replace(reference, location=url)
            try:
                if _tags_of(_encrypted_of(url, self._options_of(moved)), fork_id):
                    return moved
            except (UsageError, ObjectNotFoundError):  # it is the parent of another fork
                continue
        return reference

    def _check_agrees(self, parent: ObjectStore, tags: Sequence[str], fork_id: str) -> None:
        """Check that a tag in the parent refers to this location."""
        locations = [confirmed_by(parent, path) for path in tags]
        if not any(map(self._is_named_by, locations)):
            raise CheckpointError(
                f"{self.url} says that it is fork {fork_id} of {parent.url}, but the tag there "
                f"refers to {', '.join(filter(None, locations)) or 'no location'}. If the fork was moved or "
                f"copied, specify its parent: --parent {parent.url} on the command line, or the store "
                f"option {PARENTS}",
                reason="parent",
                path=PATHS.parent(fork_id),
            )

    def _options_of(self, reference: ParentReference) -> Mapping[str, object]:
        """
        Return the options for the parent.

        Of its client in the same kind of store, of its encryption.
        """
        if _scheme(reference.location) == _scheme(self.url):
            return self._options
        return {name: value for name, value in self._options.items() if name in (OPTION, PARENTS)}

    def _refused(self, reference: ParentReference, fork_id: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"{self.url} is a fork of {reference.location} (checkpoint {reference.checkpoint_id}), "
            f"which cannot be read: {why}. If the parent was moved, specify its new location: --parent URL on the "
            f"command line, or the store option {PARENTS}. Otherwise it was deleted, or the fork was released "
            f"there (`statelog tag ... {fork_id} --kind fork --remove`); objects that the fork needs may be "
            "gone",
            reason="parent",
            path=PATHS.parent(fork_id),
        )

    def _route(self, path: str) -> tuple[ObjectStore, str]:
        if not path.startswith(_PREFIX):
            return self._store, path
        parsed = parse_parent_path(path)
        if parsed is None:
            raise UsageError(f"{path!r} is not an object name: expected parent/<fork id>/<name>")
        return self.parent(parsed[0]), parsed[1]

    def put(self, path: str, data: Buffers) -> None:
        """Write a new object."""
        self._change()
        self._store.put(_own_path(path), data)

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """Write a new object, or raise `ObjectExistsError`."""
        self._change()
        self._store.put_if_absent(_own_path(path), data)

    def get(self, path: str) -> memoryview:
        """Return the whole object, or raise `ObjectNotFoundError`."""
        store, name = self._route(path)
        return self._decrypted(path, store.get(name))

    def get_again(self, path: str) -> memoryview:
        """Return the whole object, over a new connection and bypassing caches."""
        store, name = self._route(path)
        return self._decrypted(path, get_again(store, name))

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """Return *length* bytes from *start*; fewer only at the end of the object."""
        store, name = self._route(path)
        data = store.get_range(name, start, length)
        return data if start else self._decrypted(path, data)

    def get_tail(self, path: str, length: int) -> tuple[memoryview, int]:
        """Return the last *length* bytes of an object and its size; see `read_tail`."""
        store, name = self._route(path)
        data, size = read_tail(store, name, length)
        return (data if len(data) < size else self._decrypted(path, data)), size

    def head(self, path: str) -> ObjectInfo:
        """Return the size and age of an object, or raise `ObjectNotFoundError`."""
        store, name = self._route(path)
        return store.head(name)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects of this location, but not objects of a parent."""
        doomed = [path for path in paths if not path.startswith(_PREFIX)]
        if doomed:
            self._change()
            self._store.delete(doomed)

    def _decrypted(self, path: str, data: memoryview) -> memoryview:
        """Return *data*, the beginning of an object, unless it is still encrypted."""
        if bytes(data[: len(MAGIC)]) == MAGIC:
            raise InvalidOptionsError(
                f"{path} in {self.url} is encrypted, but no keys were given: set the store option "
                f"{OPTION}, or the environment variable {ENVIRONMENT}, to env:NAME or file:PATH",
                path=path,
            )
        return data

    def _change(self) -> None:
        if self.before_change is not None:
            self.before_change()


def open_location(
    location: str | os.PathLike[str], *, options: Mapping[str, object] | None = None
) -> LocationStore:
    """
    Open the store of a state location for writing; arguments and errors as for `open_store`.

    The option `encryption`, or the environment variable `STATELOG_ENCRYPTION`, has the source of
    the keys of an encrypted location; see `EncryptedStore`.
    """
    client, keys = split_options(options)
    store = _encrypted(open_store(location, storage_options=client), keys)
    return LocationStore(store, options)


def open_existing_store(
    location: str | os.PathLike[str],
    *,
    options: Mapping[str, object] | None = None,
    shown: str = "",
) -> LocationStore:
    """
    Return the store of a location; a directory on local disk must already exist.

    For callers that only read: `open_store` makes the directory at the first use.

    Args:
        location: As for `open_store`.
        options: As for `open_store`.
        shown: What to call it in an error; *location* if left out.

    Raises:
        UsageError: There is no such directory.
        InvalidOptionsError: As `open_store`.
    """
    return LocationStore(_encrypted_of(location, options, shown), options)


def open_query_files(
    location: str | os.PathLike[str], *, options: Mapping[str, object] | None = None
) -> ObjectStore:
    """
    Open the store of a query's checkpointLocation, which is never encrypted.

    Args:
        location: Path or URL of the checkpointLocation.
        options: As for `open_location`.

    Raises:
        UsageError: There is no such directory.
        InvalidOptionsError: As `open_store`.
    """
    return _open_existing(location, options=split_options(options)[0])


def _open_existing(
    location: str | os.PathLike[str], *, options: Mapping[str, object] | None, shown: str = ""
) -> ObjectStore:
    store = open_store(location, storage_options=options)
    if store.local_root is not None and not os.path.isdir(store.local_root):
        raise UsageError(f"the directory {shown or location} does not exist")
    return store


def _encrypted_of(
    location: str | os.PathLike[str], options: Mapping[str, object] | None, shown: str = ""
) -> ObjectStore:
    """Open an existing store, decrypting it if necessary."""
    client, keys = split_options(options)
    return _encrypted(_open_existing(location, options=client, shown=shown), keys)


def _encrypted(store: ObjectStore, keys: object | None) -> ObjectStore:
    if keys is None:
        return store
    # Imported here: only a location with keys needs it.
    from statelog.store.encryption import EncryptedStore

    return EncryptedStore(store, keys)


def with_source(
    options: Mapping[str, object] | None, environ: Mapping[str, str] | None = None
) -> dict[str, object]:
    """
    Add the key source and the parents of forks from the environment to *options*.

    They are for tasks in processes of another environment.

    A task without the source would write objects that are not encrypted.
    """
    complete = dict(options or {})
    environ = os.environ if environ is None else environ
    source = environ.get(ENVIRONMENT)
    if source:
        complete.setdefault(OPTION, source)
    if parents := environ.get(PARENTS_ENVIRONMENT):
        complete.setdefault(PARENTS, parents)
    return complete


def split_options(
    options: Mapping[str, object] | None,
) -> tuple[dict[str, object], object | None]:
    """
    Split options into the options of the store's client and the source of the keys.

    None without encryption.
    """
    client = dict(
        instance(options or {}, "options", Mapping, "a mapping", error=InvalidOptionsError)
    )
    client.pop(PARENTS, None)
    source = client.pop(OPTION, None)
    if source is None:
        source = os.environ.get(ENVIRONMENT) or None
    return client, None if source == "none" else source


def _own_path(path: str) -> str:
    if path.startswith(_PREFIX):
        raise UsageError(f"{path!r} belongs to the fork's parent; a fork cannot write to it")
    return path


def _tags_of(parent: ObjectStore, fork_id: str) -> tuple[str, ...]:
    return tuple(info.path for info in parent.list(PATHS.tags_of("fork", fork_id)))


def _scheme(url: str) -> str:
    return url.partition(":")[0]
