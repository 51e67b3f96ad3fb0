"""
A store that encrypts what it writes, and authenticates what it reads.

It returns the sizes of the content.  Names, sizes and times of objects are not hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from statelog.errors import CorruptionError
from statelog.store.api import Buffers, ObjectInfo, ObjectStore
from statelog.store.at_once import endpoint_of
from statelog.store.encryption import (
    CHUNK_BYTES,
    HEADER_BYTES,
    TAG_BYTES,
    EncryptionKeys,
    ObjectCipher,
    content_bytes,
    encrypt,
    load_keys,
    require_cryptography,
)
from statelog.store.verified import get_again, read_verified

_STEP = CHUNK_BYTES + TAG_BYTES
_CIPHERS_MAX = 512


class EncryptedStore:
    """
    An `ObjectStore` whose objects are encrypted with AES-256-GCM.

    Picklable if *keys* is a source, which the copy reads again in its process.

    Args:
        store: The store of the encrypted objects.
        keys: The keys, or where they come from: "env:NAME", "file:PATH" or a function
            (`statelog.store.encryption.load_keys`).

    Raises:
        InvalidOptionsError: The source of the keys cannot be read.
        RequirementError: The package cryptography is missing.

    Thread: any, as for every store.
    """

    def __init__(self, store: ObjectStore, keys: EncryptionKeys | object) -> None:
        require_cryptography()
        self._store = store
        self._source = keys
        self._keys = keys if isinstance(keys, EncryptionKeys) else load_keys(keys)
        self._ciphers: dict[str, ObjectCipher] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return EncryptedStore, (self._store, self._source)

    def __repr__(self) -> str:
        return f"EncryptedStore({self._store!r})"

    @property
    def url(self) -> str:
        """Root of the store as a URL, without secrets."""
        return self._store.url

    @property
    def endpoint(self) -> str | None:
        """The server of the store; see `endpoint_of`."""
        return endpoint_of(self._store)

    @property
    def local_root(self) -> str | None:
        """Directory of the store if it is on local disk, else None."""
        root: str | None = getattr(self._store, "local_root", None)
        return root

    def put(self, path: str, data: Buffers) -> None:
        """Encrypt and write a new object."""
        self._store.put(path, encrypt(self._keys, path, data))

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """Encrypt and write a new object, or raise `ObjectExistsError`."""
        self._store.put_if_absent(path, encrypt(self._keys, path, data))

    def get(self, path: str) -> memoryview:
        """
        Return the content of the whole object.

        Raises:
            ObjectNotFoundError: There is no such object.
            CorruptionError: It was changed, cut off or exchanged, or is not encrypted.
            InvalidOptionsError: Its key is missing.
        """
        return memoryview(read_verified(self._store, path, partial(self._decrypted, path)))

    def get_again(self, path: str) -> memoryview:
        """Return the content of the whole object, read over a new connection and past caches."""
        return memoryview(self._decrypted(path, get_again(self._store, path)))

    def _decrypted(self, path: str, stored: memoryview) -> bytes:
        cipher = ObjectCipher(self._keys, path, stored[:HEADER_BYTES], self._where(path))
        return cipher.decrypt(stored[HEADER_BYTES:], 0, ends=True)

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """
        Return part of the content; errors as for `get`.

        Blocks: For the store: one request, one more for the header of an object the first time.
        """
        if length <= 0 or start < 0:
            return self._store.get_range(path, start, length)  # empty, or an error
        try:
            return self._range(path, self._ciphers.get(path) or self._open(path), start, length)
        except CorruptionError:
            # A bad transfer, or an object that was deleted and put again: the whole one decides.
            self._ciphers.pop(path, None)
            return self.get(path)[start : start + length]

    def head(self, path: str) -> ObjectInfo:
        """Return size of the content and age of the object."""
        return _of_content(self._store.head(path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder *prefix*, with the size of its content."""
        return map(_of_content, self._store.list(prefix))

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly below the folder *prefix*."""
        return self._store.list_folders(prefix)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; ignore names that do not exist."""
        self._store.delete(paths)

    def _where(self, path: str) -> str:
        return f"{path} in {self.url}"

    def _open(self, path: str) -> ObjectCipher:
        header = self._store.get_range(path, 0, HEADER_BYTES)
        cipher = ObjectCipher(self._keys, path, header, self._where(path))
        if len(self._ciphers) >= _CIPHERS_MAX:
            self._ciphers.clear()
        self._ciphers[path] = cipher
        return cipher

    def _range(self, path: str, cipher: ObjectCipher, start: int, length: int) -> memoryview:
        first, last = start // CHUNK_BYTES, (start + length - 1) // CHUNK_BYTES
        size = (last + 1 - first) * _STEP
        # One byte more tells whether the last chunk of the range is the last one of the object.
        stored = self._store.get_range(path, HEADER_BYTES + first * _STEP, size + 1)
        if not len(stored):
            self._check_end(path, cipher)
            return memoryview(b"")
        content = cipher.decrypt(stored[:size], first, ends=len(stored) <= size)
        skipped = start - first * CHUNK_BYTES
        return memoryview(content)[skipped : skipped + length]

    def _check_end(self, path: str, cipher: ObjectCipher) -> None:
        """Raise `CorruptionError` unless the object ends where its writer ended it."""
        body = self._store.head(path).size_bytes - HEADER_BYTES
        last = max(-(-body // _STEP) - 1, 0)
        stored = self._store.get_range(path, HEADER_BYTES + last * _STEP, _STEP)
        cipher.decrypt(stored, last, ends=True)


def _of_content(info: ObjectInfo) -> ObjectInfo:
    return replace(info, size_bytes=content_bytes(info.size_bytes))
