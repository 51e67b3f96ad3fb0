"""Encrypted objects: what is read is what was written there, or an error says so."""

import base64
import itertools
import os
import pickle
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statelog.errors import CorruptionError, InvalidOptionsError
from statelog.store import EncryptedStore, ObjectStore, open_location, open_query_files, open_store
from statelog.store.encryption import (
    CHUNK_BYTES,
    HEADER_BYTES,
    TAG_BYTES,
    EncryptionKeys,
    content_bytes,
    encrypt,
    load_keys,
)
from statelog.store.location_store import ENVIRONMENT
from statelog.store.paths import split_object
from statelog.store.verified import read_verified

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "vectors"
PLACES = itertools.count()
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
KEYS = EncryptionKeys({"k1": KEY})
EDGES = [0, 1, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 10**7]
sizes = st.sampled_from(EDGES[:-1]) | st.integers(0, 2 * CHUNK_BYTES)
bounds = st.sampled_from(EDGES) | st.integers(0, 5 * CHUNK_BYTES)


def raw() -> ObjectStore:
    return open_store(f"memory://encrypted-{os.getpid()}-{next(PLACES)}")


@pytest.fixture
def plain() -> ObjectStore:
    return raw()


@pytest.fixture
def store(plain: ObjectStore) -> EncryptedStore:
    return EncryptedStore(plain, KEYS)


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@settings(max_examples=150, deadline=None)
@given(st.lists(sizes, max_size=5), st.lists(st.tuples(bounds, bounds), min_size=5, max_size=5))
def test_content_in_pieces_is_read_whole_and_in_ranges(sizes, ranges):
    pieces = [content(size) for size in sizes]
    data = b"".join(pieces)
    store = EncryptedStore(raw(), KEYS)
    store.put("a/b", pieces)
    assert bytes(store.get("a/b")) == data
    assert store.head("a/b").size_bytes == len(data)
    assert [info.size_bytes for info in store.list()] == [len(data)]
    for start, length in (*ranges, (len(data), 1), (max(len(data) - 1, 0), 2)):
        assert bytes(store.get_range("a/b", start, length)) == data[start : start + length]
    stored = sum(map(len, encrypt(KEYS, "a/b", pieces)))
    assert content_bytes(stored) == len(data)


def test_nothing_of_the_content_is_stored_and_no_two_objects_are_alike(plain, store):
    data = b"a customer's name " * 10_000
    store.put("one", data)
    store.put("two", data)
    stored = [bytes(plain.get(name)) for name in ("one", "two")]
    assert all(b"customer" not in content for content in stored)
    assert stored[0][HEADER_BYTES:] != stored[1][HEADER_BYTES:]


def refused(store: EncryptedStore, name: str, size: int) -> None:
    with pytest.raises(CorruptionError, match="cannot be authenticated"):
        store.get(name)
    starts = {0, size // 2, max(size - 1, 0)}
    answers = []
    for start in starts:
        try:
            answers.append(bytes(store.get_range(name, start, size + 1 - start)))
        except CorruptionError:
            continue
    assert not answers, "a range up to the end has the damage"


@pytest.mark.parametrize("size", [0, 100, CHUNK_BYTES, 2 * CHUNK_BYTES + 7])
def test_a_change_of_any_byte_is_found(plain, store, size):
    store.put("name", content(size))
    stored = bytes(plain.get("name"))
    choice = random.Random(1)
    places = {0, 8, 9, 20, 41, 72, 79, HEADER_BYTES, len(stored) - 1}
    places |= {choice.randrange(len(stored)) for _ in range(40)}
    for place in places:
        damaged = bytearray(stored)
        damaged[place] ^= 1 << choice.randrange(8)
        plain.put("name", bytes(damaged))
        with pytest.raises((CorruptionError, InvalidOptionsError)):
            EncryptedStore(plain, KEYS).get("name")


@pytest.mark.parametrize("cut", [1, TAG_BYTES, CHUNK_BYTES, CHUNK_BYTES + TAG_BYTES])
def test_an_object_that_is_cut_off_is_found(plain, store, cut):
    size = 3 * CHUNK_BYTES
    store.put("name", content(size))
    plain.put("name", bytes(plain.get("name"))[:-cut])
    refused(store, "name", size)
    with pytest.raises(CorruptionError):  # beyond the new end: it is not where the writer ended
        store.get_range("name", size + 5, 10)
    plain.put("name", bytes(plain.get("name"))[:HEADER_BYTES])
    refused(store, "name", size)
    plain.put("name", b"")
    with pytest.raises(CorruptionError, match="not an encrypted object"):
        EncryptedStore(plain, KEYS).get("name")


def test_chunks_and_objects_do_not_change_places(plain, store):
    store.put("one", content(3 * CHUNK_BYTES))
    store.put("two", content(3 * CHUNK_BYTES + 1))
    one, two = bytes(plain.get("one")), bytes(plain.get("two"))
    step = CHUNK_BYTES + TAG_BYTES
    plain.put("one", two)
    refused(store, "one", 3 * CHUNK_BYTES)
    head, body = one[:HEADER_BYTES], one[HEADER_BYTES:]
    plain.put("one", head + body[step : 2 * step] + body[:step] + body[2 * step :])
    with pytest.raises(CorruptionError, match="chunk 0 of one"):
        store.get("one")
    plain.put("one", head + two[HEADER_BYTES : HEADER_BYTES + step] + body[step:])
    with pytest.raises(CorruptionError, match="chunk 0 of one"):
        store.get("one")


def test_a_forged_plain_object_is_refused(plain, store):
    plain.put("chk-1/_metadata", b"forged")
    with pytest.raises(CorruptionError, match=r"not an encrypted object.*statelog copy"):
        store.get("chk-1/_metadata")
    with pytest.raises(CorruptionError, match="not an encrypted object"):
        store.get_range("chk-1/_metadata", 0, 3)


def test_keys_rotate_and_a_missing_or_wrong_one_is_named(plain):
    EncryptedStore(plain, KEYS).put("old", b"old")
    both = EncryptedStore(plain, EncryptionKeys({"k2": OTHER, "k1": KEY}))
    both.put("new", b"new")
    assert [bytes(both.get(name)) for name in ("old", "new")] == [b"old", b"new"]
    with pytest.raises(InvalidOptionsError, match=r"new .*is encrypted with the key 'k2'.* k1"):
        EncryptedStore(plain, KEYS).get("new")
    with pytest.raises(CorruptionError, match="a different key has the same id"):
        EncryptedStore(plain, EncryptionKeys({"k1": OTHER})).get("old")


def test_an_object_that_was_put_again_is_read_by_its_new_header(plain):
    reader, writer = EncryptedStore(plain, KEYS), EncryptedStore(plain, KEYS)
    writer.put("name", b"first")
    assert bytes(reader.get_range("name", 1, 2)) == b"ir"
    writer.delete(["name"])
    writer.put("name", b"second")
    assert bytes(reader.get_range("name", 1, 2)) == b"ec"


def test_a_single_bad_transfer_is_not_damage():
    class Flipping:
        def __init__(self, store):
            self.store, self.bad = store, 0

        def __getattr__(self, name):
            return getattr(self.store, name)

        def _flipped(self, data):
            if not self.bad:
                return data
            self.bad -= 1
            flipped = bytearray(data)
            flipped[-1] ^= 1
            return memoryview(flipped)

        def get(self, path):
            return self._flipped(self.store.get(path))

        get_again = get

        def get_range(self, path, start, length):
            return self._flipped(self.store.get_range(path, start, length))

    plain = Flipping(raw())
    store = EncryptedStore(plain, KEYS)
    data = content(2 * CHUNK_BYTES)
    store.put("name", data)
    plain.bad = 1
    assert bytes(store.get("name")) == data
    for bad in (1, 2):
        plain.bad = bad
        read = EncryptedStore(plain, KEYS).get_range("name", 7, CHUNK_BYTES)
        assert bytes(read) == data[7 : 7 + CHUNK_BYTES]
    with pytest.raises(CorruptionError, match="read twice with the same bytes"):
        plain.bad = 10**9
        store.get("name")


def test_a_range_reads_its_chunks_alone():
    class Counting:
        def __init__(self, store):
            self.store, self.read = store, []

        def __getattr__(self, name):
            return getattr(self.store, name)

        def get_range(self, path, start, length):
            self.read.append(length)
            return self.store.get_range(path, start, length)

    plain = Counting(raw())
    store = EncryptedStore(plain, KEYS)
    store.put("name", content(50 * CHUNK_BYTES))
    store.get_range("name", 10 * CHUNK_BYTES, 10)
    assert plain.read == [HEADER_BYTES, CHUNK_BYTES + TAG_BYTES + 1]
    store.get_range("name", 20 * CHUNK_BYTES, 10)
    assert len(plain.read) == 3, "the header is read once"


def test_version_1_is_read_for_ever(plain):
    plain.put("chk-1/_metadata", (GOLDEN / "encrypted_v1.bin").read_bytes())
    store = EncryptedStore(plain, EncryptionKeys({"golden-1": bytes(range(32))}))
    assert bytes(store.get("chk-1/_metadata")) == b"written by version 1" * 4000


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def test_keys_come_from_a_variable_a_file_or_a_function(tmp_path, monkeypatch):
    monkeypatch.setenv("THE_KEY", text(KEY))
    (key_id,) = load_keys("env:THE_KEY")._keys
    assert len(key_id) == 8
    file = tmp_path / "keys"
    file.write_text(f"# newest first\n\nk2: {text(OTHER)}\nk1:{text(KEY)}\n")
    keys = load_keys(f"file:{file}")
    assert (keys.current, keys.of("k1", "it")) == ("k2", KEY)
    assert load_keys(lambda: {"k": KEY}).current == "k"
    assert "k2" in repr(keys)
    assert text(KEY) not in repr(keys)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("env:NOT_SET", "NOT_SET, which must contain the encryption keys, is not set"),
        ("env:", "use env:NAME, file:PATH"),
        ("file:/no/such/file", "cannot be read"),
        ("secret-in-the-wrong-place", "use env:NAME, file:PATH"),
        (7, "an object of int"),
        (dict, "at least one key"),
        (lambda: {"k": b"short"}, "is 5 bytes long; it must be 32"),
        (lambda: {"k/\n": KEY}, "the id of an encryption key must be"),
    ],
)
def test_a_source_without_keys_is_refused(source, message):
    with pytest.raises(InvalidOptionsError, match=message) as raised:
        load_keys(source)
    assert "secret-in" not in str(raised.value)


def test_a_line_that_is_no_key_is_named_and_not_shown(monkeypatch):
    for line in ("k1:c2hvcnQ=", "not base64!", "k1:" + text(KEY) + "x"):
        monkeypatch.setenv("THE_KEY", f"# keys\n{line}")
        with pytest.raises(InvalidOptionsError, match="line 2 of the environment") as raised:
            load_keys("env:THE_KEY")
        assert line not in str(raised.value)
    monkeypatch.setenv("THE_KEY", "\n")
    with pytest.raises(InvalidOptionsError, match="does not contain an encryption key"):
        load_keys("env:THE_KEY")


def test_a_location_is_encrypted_by_option_or_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("THE_KEY", text(KEY))
    place = str(tmp_path / "job")
    by_option = open_location(place, options={"encryption": "env:THE_KEY"})
    by_option.put("dstl/1", b"claimed")
    assert b"claimed" not in (tmp_path / "job/dstl/1").read_bytes()
    again = pickle.loads(pickle.dumps(by_option))
    assert bytes(again.get("dstl/1")) == b"claimed"
    assert again.local_root == place
    monkeypatch.setenv(ENVIRONMENT, "env:THE_KEY")
    assert bytes(open_location(place).get("dstl/1")) == b"claimed"
    plain = open_location(place, options={"encryption": "none"})
    with pytest.raises(InvalidOptionsError, match="is encrypted, but no keys were given"):
        plain.get("dstl/1")
    (tmp_path / "query").mkdir()
    (tmp_path / "query/metadata").write_bytes(b"Spark's")
    files = open_query_files(str(tmp_path / "query"), options={"encryption": "env:THE_KEY"})
    assert bytes(files.get("metadata")) == b"Spark's", "Spark's files are not encrypted"


@pytest.mark.parametrize(
    "read",
    [
        lambda store, path: store.get(path),
        lambda store, path: store.get_again(path),
        lambda store, path: store.get_range(path, 0, 100),
        lambda store, path: store.get_tail(path, 1024),
        lambda store, path: read_verified(store, path, _nothing_fits),
        lambda store, path: read_verified(
            store, path, _nothing_fits, first=lambda: _nothing_fits(store.get_range(path, 30, 4))
        ),
    ],
    ids=["get", "get_again", "get_range", "get_tail", "verified", "verified_after_a_range"],
)
def test_every_read_without_keys_says_that_the_object_is_encrypted(tmp_path, read):
    keys = {"encryption": lambda: {"k1": KEY}}
    open_location(str(tmp_path / "job"), options=keys).put("dstl/x", b"changes")
    plain = open_location(str(tmp_path / "job"), options={"encryption": "none"})
    with pytest.raises(InvalidOptionsError, match="is encrypted, but no keys were given"):
        read(plain, "dstl/x")


def _nothing_fits(data):
    raise CorruptionError("these bytes are no change set", path="dstl/x")


def test_objects_are_split_into_location_and_name():
    for name in (
        "chk-12/_metadata",
        "dstl/x",
        "parents/0123456789abcdef",
        "recordings/failed/x",
        "tags/tag/release/3-0123456789abcdef",
        "copied-0123456789abcdef/from",
    ):
        assert split_object(f"s3://b/jobs/totals/{name}") == ("s3://b/jobs/totals", name)
    assert split_object("file:///a/b") == ("file:///a", "b")
