"""
A store that encrypts its writes and authenticates its reads.

The store returns the sizes of the content.  Names, sizes and times of objects are not hidden.

An object is a header and chunks::

    header   magic "STLGENC1", length of the key id, key id (32 bytes, padded), salt (32 bytes), zeros
    chunk    64 KiB of content (the last one: the rest, maybe none), encrypted, and a tag of 16 bytes

Each object has a key of its own: HKDF-SHA256 of the caller's key and the random salt.  A chunk is
AES-256-GCM under it.  Its nonce is the chunk's number and whether it is the last one; header and
name of the object are authenticated with it.  So a chunk that was changed, moved, taken from
another object or cut off does not decrypt, and a range of an object costs only the chunks that it
touches.
Source: the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizar, 2015), as age and Tink use it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from statelog import extras
from statelog.errors import CorruptionError, InvalidOptionsError
from statelog.format.buffers import Buffer, Buffers, pieces_of
from statelog.store.api import ObjectInfo, ObjectStore, StoreWrapper
from statelog.store.location_store import MAGIC, OPTION
from statelog.store.verified import get_again, read_verified

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


CHUNK_BYTES: Final = 64 * 1024
TAG_BYTES: Final = 16
HEADER_BYTES: Final = 80
_HEADER: Final = struct.Struct(">8sB32s32s7x")
_NONCE: Final = struct.Struct(">IQ")
_KEY_BYTES: Final = 32
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,32}")
_KEYS_MAX: Final = 1000

_STEP = CHUNK_BYTES + TAG_BYTES
_CIPHERS_MAX = 512


class EncryptionKeys:
    """The keys of a location, by id. The first key encrypts; any key can decrypt."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise InvalidOptionsError("encryption requires at least one key")
        for key_id, key in keys.items():
            if _ID.fullmatch(key_id) is None:
                raise InvalidOptionsError(
                    "the id of an encryption key must be 1 to 32 letters, digits and ._-"
                )
            if len(key) != _KEY_BYTES:
                raise InvalidOptionsError(
                    f"the encryption key {key_id!r} is {len(key)} bytes long; it must be {_KEY_BYTES}"
                )
        self._keys = {key_id: bytes(key) for key_id, key in keys.items()}
        self.current = next(iter(keys))

    def __repr__(self) -> str:
        return f"EncryptionKeys({', '.join(self._keys)})"

    def of(self, key_id: str, where: str) -> bytes:
        """Return the key with this id."""
        key = self._keys.get(key_id)
        if key is None:
            raise InvalidOptionsError(
                f"{where} is encrypted with the key {key_id!r}, but the available keys are "
                f"{', '.join(self._keys)}: add that key"
            )
        return key

    @classmethod
    def parse(cls, text: str, where: str) -> EncryptionKeys:
        """Parse keys from lines with `id:base64` or only base64; the current key comes first."""
        keys: dict[str, bytes] = {}
        lines = [line.strip() for line in text.splitlines()]
        for number, line in enumerate(lines[:_KEYS_MAX], 1):
            if not line or line.startswith("#"):
                continue
            key_id, _, encoded = line.rpartition(":")
            try:
                key = base64.b64decode(encoded.strip(), validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if len(key) != _KEY_BYTES:
                raise InvalidOptionsError(
                    f"line {number} of {where} is not an encryption key: use id:base64 of "
                    f"{_KEY_BYTES} bytes, such as the output of `openssl rand -base64 32`"
                )
            keys[key_id.strip() or hashlib.sha256(key).hexdigest()[:8]] = key
        if not keys:
            raise InvalidOptionsError(f"{where} does not contain an encryption key")
        return cls(keys)


def load_keys(source: object) -> EncryptionKeys:
    """Load the keys from a source."""
    if callable(source):
        return EncryptionKeys(source())
    kind, _, name = str(source).partition(":")
    if isinstance(source, str) and kind == "env" and name:
        text = os.environ.get(name)
        if text is None:
            raise InvalidOptionsError(
                f"the environment variable {name}, which must contain the encryption keys, is not set"
            )
        return EncryptionKeys.parse(text, f"the environment variable {name}")
    if isinstance(source, str) and kind == "file" and name:
        try:
            with open(name, encoding="ascii") as file:
                return EncryptionKeys.parse(file.read(), name)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOptionsError(f"the encryption keys cannot be read: {error}") from error
    described = repr(source) if kind in ("env", "file") else f"an object of {type(source).__name__}"
    raise InvalidOptionsError(
        f"the store option {OPTION} is {described}; use env:NAME, file:PATH or a function"
    )


def encrypt(keys: EncryptionKeys, path: str, data: Buffers) -> list[Buffer]:
    """Return the bytes of an encrypted object: a header and chunks."""
    key_id = keys.current.encode()
    header = _HEADER.pack(MAGIC, len(key_id), key_id, os.urandom(32))
    cipher = _cipher(keys.of(keys.current, path), header)
    bound = header + path.encode()
    encrypted: list[Buffer] = [header]
    chunks = _chunks(data)
    chunk = next(chunks)
    for index, following in enumerate(chunks):
        encrypted.append(cipher.encrypt(_nonce(index, last=False), chunk, bound))
        chunk = following
    encrypted.append(cipher.encrypt(_nonce(len(encrypted) - 1, last=True), chunk, bound))
    return encrypted


class ObjectCipher:
    """Decrypts the chunks of one object."""

    def __init__(self, keys: EncryptionKeys, path: str, header: Buffer, where: str) -> None:
        header = bytes(header)
        if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
            raise CorruptionError(
                f"{where} is not an encrypted object, but this location was opened with encryption "
                "keys: a different program wrote the object, or the location is not encrypted; "
                "`statelog copy` creates an encrypted copy",
                path=path,
            )
        _, length, key_id, _ = _HEADER.unpack(header)
        name = key_id[:length].decode("ascii", "replace")
        if length > len(key_id) or _ID.fullmatch(name) is None:
            raise CorruptionError(f"the encryption header of {where} is damaged", path=path)
        self._cipher = _cipher(keys.of(name, where), header)
        self._bound = header + path.encode()
        self._path = path
        self._where = where

    def decrypt(self, chunks: memoryview, first: int, *, ends: bool) -> bytes:
        """Return the decrypted content of consecutive chunks."""
        from cryptography.exceptions import InvalidTag

        step = CHUNK_BYTES + TAG_BYTES
        starts = range(0, max(len(chunks), 1), step)
        content = []
        for number, start in enumerate(starts, first):
            nonce = _nonce(number, last=ends and start == starts[-1])
            try:
                piece = self._cipher.decrypt(nonce, chunks[start : start + step], self._bound)
            except (InvalidTag, ValueError) as error:
                raise CorruptionError(
                    f"chunk {number} of {self._where} cannot be authenticated: the object was changed, "
                    "truncated or exchanged, or a different key has the same id; restore the object "
                    "from a copy",
                    path=self._path,
                    offset=number * CHUNK_BYTES,
                ) from error
            content.append(piece)
        return content[0] if len(content) == 1 else b"".join(content)


def content_bytes(stored_bytes: int) -> int:
    """
    Return the size of the content, given the stored size *stored_bytes*.

    0 if it is no encrypted one.
    """
    body = stored_bytes - HEADER_BYTES
    chunks = -(-body // (CHUNK_BYTES + TAG_BYTES))
    return max(body - chunks * TAG_BYTES, 0)


def _cipher(key: bytes, header: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    salt = _HEADER.unpack(header)[3]
    derived = HKDF(SHA256(), _KEY_BYTES, salt, b"statelog object 1").derive(key)
    return AESGCM(derived)


def _nonce(index: int, *, last: bool) -> bytes:
    return _NONCE.pack(int(last), index)


def _chunks(data: Buffers) -> Iterator[Buffer]:
    """
    Split the content into chunks.

    Only the last one is shorter, and an empty one is yielded alone.
    """
    waiting: list[memoryview] = []
    size = 0
    for piece in pieces_of(data):
        view = memoryview(piece).cast("B")
        while size + len(view) > CHUNK_BYTES:
            cut = CHUNK_BYTES - size
            yield _joined([*waiting, view[:cut]])
            waiting = []
            size = 0
            view = view[cut:]
        if len(view):
            waiting.append(view)
            size += len(view)
    yield _joined(waiting)


def _joined(pieces: Sequence[memoryview]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def require_cryptography() -> None:
    """Raise `RequirementError` if the package for encryption is not installed."""
    extras.require("encryption", "encryption", "cryptography")


class EncryptedStore(StoreWrapper):
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
        super().__init__(store)
        self._source = keys
        self._keys = keys if isinstance(keys, EncryptionKeys) else load_keys(keys)
        self._ciphers: dict[str, ObjectCipher] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return EncryptedStore, (self._store, self._source)

    def put(self, path: str, data: Buffers) -> None:
        """Encrypt and write a new object."""
        self._store.put(path, encrypt(self._keys, path, data))

    def put_if_absent(self, path: str, data: Buffers) -> None:
        """Encrypt and write a new object, or raise `ObjectExistsError`."""
        self._store.put_if_absent(path, encrypt(self._keys, path, data))

    def get(self, path: str) -> memoryview:
        """
        Return the decrypted content of the whole object.

        Raises:
            ObjectNotFoundError: There is no such object.
            CorruptionError: It was changed, cut off or exchanged, or is not encrypted.
            InvalidOptionsError: Its key is missing.
        """
        return memoryview(read_verified(self._store, path, partial(self._decrypted, path)))

    def get_again(self, path: str) -> memoryview:
        """Return the decrypted content of the whole object over a new connection, uncached."""
        return memoryview(self._decrypted(path, get_again(self._store, path)))

    def _decrypted(self, path: str, stored: memoryview) -> bytes:
        cipher = ObjectCipher(self._keys, path, stored[:HEADER_BYTES], self._where(path))
        return cipher.decrypt(stored[HEADER_BYTES:], 0, ends=True)

    def get_range(self, path: str, start: int, length: int) -> memoryview:
        """
        Return a part of the decrypted content; raises like `get`.

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
        """Return the size of the decrypted content, and the object's age."""
        return _of_content(self._store.head(path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder *prefix*, with the size of its decrypted content."""
        return map(_of_content, self._store.list(prefix))

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
        first = start // CHUNK_BYTES
        last = (start + length - 1) // CHUNK_BYTES
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
