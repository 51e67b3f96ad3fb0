"""Copy state between folders of one store, for `FsCheckpointStreamFactory.duplicate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from statelog.arguments import refused
from statelog.checkpoint.state_stream import read_stream
from statelog.errors import StoreError
from statelog.model import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from statelog.store import ObjectStore


def duplicate_state(
    store: ObjectStore,
    handles: Sequence[StreamStateHandle],
    new_path: Callable[[str | None], str],
    attempts: int,
) -> list[StreamStateHandle]:
    """
    Copy the objects of *handles*; all of them, or none.

    Args:
        store: The store of the objects and of the copies.
        handles: Handles to copy; inline ones contain their bytes and are returned unchanged.
        new_path: Makes the path of a copy from a file name; for None from a new name.
        attempts: Names to try while another object has the name.

    Raises:
        CorruptionError: An object does not have the checksum of its handle.
        StoreError: The store failed; copies made before have been deleted as far as possible.

    Blocks: For the store.
    """
    copies: list[StreamStateHandle] = []
    try:
        for handle in handles:
            if isinstance(handle, ByteStreamStateHandle):
                copies.append(handle)
            elif isinstance(handle, FileStateHandle):
                copies.append(_copy(store, handle, new_path, attempts))
            else:
                raise refused("each of handles", "a stream state handle", handle)
    except BaseException:
        _delete_quietly(store, [each.path for each in copies if isinstance(each, FileStateHandle)])
        raise
    return copies


def _copy(
    store: ObjectStore,
    handle: FileStateHandle,
    new_path: Callable[[str | None], str],
    attempts: int,
) -> FileStateHandle:
    # Without a checksum it may be a changelog file, whose handle counts uncompressed bytes.
    is_verifiable = handle.crc32c is not None
    data = read_stream(store, handle) if is_verifiable else store.get(handle.path)
    name: str | None = handle.path.rpartition("/")[2]
    for _ in range(attempts):
        path, name = new_path(name), None
        try:
            store.put_if_absent(path, data)
        except FileExistsError:
            continue
        except BaseException:
            _delete_quietly(store, [path])
            raise
        return replace(handle, path=path)
    raise StoreError(
        f"could not copy {handle.path} in {store.url}: objects of all {attempts} names exist; "
        "try again",
        path=handle.path,
    )


def _delete_quietly(store: ObjectStore, paths: list[str]) -> None:
    """Delete copies; garbage collection deletes those that remain."""
    try:
        store.delete(paths)
    except Exception:
        return  # the first error is raised
