"""
Tests for the contract of a store: subclass, add a store fixture, run pytest.

::

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)        # an empty location

The same tests run on all stores of statelog.  An `ObjectStore` of your own must pass them, because
commits depend on every one.
"""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, TypeVar

import pytest

from statelog.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from statelog.store.api import Buffers, ObjectStore

_THREADS: Final = 8
_LARGE: Final = 12 * 1024 * 1024
_CONTENT: Final = b"0123456789"
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_PIECES: Final[dict[str, Buffers]] = {
    "bytes": b"abcdef",
    "bytearray": bytearray(b"abcdef"),
    "view": memoryview(b"xabcdefx")[1:7],
    "list": [b"abc", b"def"],
    "tuple": (b"a", bytearray(b"bcd"), memoryview(b"ef")),
    "with empty ones": [b"", b"abc", b"", b"def", b""],
    "one by one": [bytes([byte]) for byte in b"abcdef"],
}
_NAMES: Final = (
    "name",
    "one/two",
    "a/b/c/d/e/f/g/h/i/j/k/l",
    "chk-7/_metadata",
    "with space/and=equals/100%/ünïcode ~ (1) + @",
    "long/" + "n" * 200,
)


class StoreContract:
    """
    Tests for an `ObjectStore`.

    A subclass has a fixture `store`: an empty store.  It may override `raw_objects` to read the
    objects without the store under test.
    """

    LISTS_EMPTY_FOLDERS: ClassVar[bool] = False
    """Whether a folder may be listed for a while after its last object was deleted."""

    def raw_objects(self, store: ObjectStore) -> dict[str, bytes]:
        """Return all objects by name, by default read through a second client."""
        other = self.another(store)
        return {info.path: bytes(other.get(info.path)) for info in other.list()}

    def another(self, store: ObjectStore) -> ObjectStore:
        """Return a second client for the same location, like those opened by Spark's workers."""
        copy: ObjectStore = pickle.loads(pickle.dumps(store))
        return copy

    # --- put and get ------------------------------------------------------------------------------

    @pytest.mark.parametrize("data", _PIECES.values(), ids=_PIECES)
    def test_what_was_put_is_read(self, store: ObjectStore, data: Buffers) -> None:
        store.put("one/put", data)
        store.put_if_absent("one/created", data)
        assert self.raw_objects(store) == {"one/put": b"abcdef", "one/created": b"abcdef"}
        assert bytes(store.get("one/put")) == bytes(store.get("one/created")) == b"abcdef"

    @pytest.mark.parametrize("data", [b"", [], [b"", b""]], ids=["empty", "no pieces", "empties"])
    def test_an_empty_object_is_an_object(self, store: ObjectStore, data: Buffers) -> None:
        store.put("put", data)
        store.put_if_absent("created", data)
        assert self.raw_objects(store) == {"put": b"", "created": b""}
        assert bytes(store.get("put")) == b""
        assert bytes(store.get_range("put", 0, 4)) == b""
        assert store.head("created").size_bytes == 0
        with pytest.raises(ObjectExistsError):
            store.put_if_absent("created", b"more")

    @pytest.mark.parametrize("conditional", [False, True], ids=["put", "put_if_absent"])
    def test_a_large_object(self, store: ObjectStore, conditional: bool) -> None:
        block = bytes(range(251)) * 1000
        data = (block * (_LARGE // len(block) + 1))[:_LARGE]
        pieces = [
            memoryview(data)[start : start + 1_000_003] for start in range(0, _LARGE, 1_000_003)
        ]
        (store.put_if_absent if conditional else store.put)("large", pieces)
        assert store.head("large").size_bytes == _LARGE
        assert bytes(store.get("large")) == data
        assert (
            bytes(store.get_range("large", _LARGE // 2, 100_000)) == data[_LARGE // 2 :][:100_000]
        )
        if conditional:
            with pytest.raises(ObjectExistsError):
                store.put_if_absent("large", pieces[:3])
            assert store.head("large").size_bytes == _LARGE

    @pytest.mark.parametrize("name", _NAMES)
    def test_names(self, store: ObjectStore, name: str) -> None:
        store.put_if_absent(name, _CONTENT)
        assert self.raw_objects(store) == {name: _CONTENT}
        assert bytes(store.get(name)) == _CONTENT
        assert [info.path for info in store.list()] == [name]
        folder = name.rpartition("/")[0]
        assert [info.path for info in store.list(folder)] == [name]
        assert list(store.list_folders()) == ([name.split("/", 1)[0]] if folder else [])
        store.delete([name])
        assert self.raw_objects(store) == {}

    def test_what_was_read_stays(self, store: ObjectStore) -> None:
        store.put("name", _CONTENT)
        whole = store.get("name")
        part = store.get_range("name", 2, 3)
        store.delete(["name"])
        assert bytes(whole) == _CONTENT
        assert bytes(part) == b"234"

    # --- ranges and heads -------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("start", "length"),
        [(0, 10), (0, 1), (3, 4), (9, 1), (9, 2), (5, 100), (0, 11), (10, 1), (11, 5), (4, 0)],
    )
    def test_ranges_at_the_edges(self, store: ObjectStore, start: int, length: int) -> None:
        store.put("name", _CONTENT)
        assert bytes(store.get_range("name", start, length)) == _CONTENT[start : start + length]

    def test_a_head_tells_size_and_age(self, store: ObjectStore) -> None:
        store.put("folder/name", _CONTENT)
        info = store.head("folder/name")
        assert (info.path, info.size_bytes) == ("folder/name", len(_CONTENT))
        assert info.last_modified.utcoffset() == dt.timedelta(0)
        (listed,) = store.list("folder")
        assert (listed.path, listed.size_bytes) == ("folder/name", len(_CONTENT))
        assert abs(listed.last_modified - info.last_modified) < dt.timedelta(seconds=2)

    def test_what_does_not_exist_is_not_found(self, store: ObjectStore) -> None:
        store.put("folder/name", _CONTENT)
        calls: Sequence[Callable[[str], object]] = (
            store.get,
            store.head,
            lambda path: store.get_range(path, 0, 4),
            lambda path: store.get_range(path, 10**6, 4),
        )
        for missing in ("other", "folder", "folder/nam", "folder/name2", "no/such/folder"):
            for call in calls:
                with pytest.raises(ObjectNotFoundError) as caught:
                    call(missing)
                assert missing in str(caught.value)
                assert isinstance(pickle.loads(pickle.dumps(caught.value)), ObjectNotFoundError)

    # --- put-if-absent ----------------------------------------------------------------------------

    @pytest.mark.parametrize("first", ["put", "put_if_absent"])
    def test_a_taken_name_is_refused_and_nothing_changes(
        self, store: ObjectStore, first: str
    ) -> None:
        getattr(store, first)("folder/name", _CONTENT)
        before = store.head("folder/name")
        for again in (_CONTENT, b"", b"other", [b"other", b" pieces"]):
            for client in (store, self.another(store)):
                with pytest.raises(ObjectExistsError) as caught:
                    client.put_if_absent("folder/name", again)
                assert "folder/name" in str(caught.value)
        assert self.raw_objects(store) == {"folder/name": _CONTENT}
        assert store.head("folder/name") == before

    def test_a_race_has_one_winner(self, store: ObjectStore) -> None:
        self._race([store] * _THREADS, store)

    def test_a_race_of_several_clients_has_one_winner(self, store: ObjectStore) -> None:
        self._race([self.another(store) for _ in range(_THREADS)], store)

    def _race(self, clients: Sequence[ObjectStore], store: ObjectStore) -> None:
        rounds = 5
        start = threading.Barrier(len(clients))
        contents = [f"{number}".encode() * (1000 + number) for number in range(len(clients))]

        def run(number: int) -> list[bool]:
            won = []
            for turn in range(rounds):
                start.wait(60)
                try:
                    clients[number].put_if_absent(f"owner/{turn}", contents[number])
                except ObjectExistsError:
                    won.append(False)
                else:
                    won.append(True)
            return won

        outcomes = in_threads(run, range(len(clients)))
        winners = [
            [number for number, won in enumerate(turn) if won]
            for turn in zip(*outcomes, strict=True)
        ]
        assert [1] * rounds == [len(turn) for turn in winners]
        expected = {f"owner/{turn}": contents[number] for turn, (number,) in enumerate(winners)}
        assert self.raw_objects(store) == expected

    # --- listings ---------------------------------------------------------------------------------

    def test_an_empty_store_lists_nothing(self, store: ObjectStore) -> None:
        assert list(store.list()) == []
        assert list(store.list("no/such/folder")) == []
        assert list(store.list_folders()) == []
        assert list(store.list_folders("no/such/folder")) == []
        store.delete(["no/such/folder/name"])
        assert self.raw_objects(store) == {}

    def test_a_listing_is_of_a_folder(self, store: ObjectStore) -> None:
        names = ["top", "chk-1/_metadata", "chk-1/deep/er/x", "chk-10/_metadata", "chk-2/_metadata"]
        for number, name in enumerate(names):
            store.put(name, b"x" * number)
        assert listed(store) == sorted(names)
        assert {info.path: info.size_bytes for info in store.list()} == {
            name: number for number, name in enumerate(names)
        }
        assert listed(store, "chk-1") == ["chk-1/_metadata", "chk-1/deep/er/x"]
        assert listed(store, "chk-1/deep") == ["chk-1/deep/er/x"]
        assert listed(store, "chk") == []
        assert sorted(store.list_folders()) == ["chk-1", "chk-10", "chk-2"]
        assert list(store.list_folders("chk-1")) == ["deep"]
        assert list(store.list_folders("chk-2")) == []

    def test_more_than_a_thousand_objects(self, store: ObjectStore) -> None:
        names = [f"many/{number % 3}/{number:05}" for number in range(1203)]
        in_threads(lambda name: store.put(name, name.encode()), names)
        assert listed(store, "many") == sorted(names)
        assert all(info.size_bytes == len(info.path) for info in store.list("many"))
        assert sorted(store.list_folders("many")) == ["0", "1", "2"]
        keep = set(names[::100])
        # Names that do not exist, among the others, at both ends, and more than one request full.
        doomed = [
            doomed_name
            for name in names
            if name not in keep
            for doomed_name in (f"{name}-missing", name)
        ]
        store.delete(name for name in ["missing", *doomed, "missing"])
        assert listed(store) == sorted(keep)
        assert sorted(self.raw_objects(store)) == sorted(keep)

    def test_a_listing_bears_deletion(self, store: ObjectStore) -> None:
        for number in range(20):
            store.put(f"folder/{number}", b"")
        for info in store.list():
            store.delete([info.path])
        assert listed(store) == []

    # --- visibility, threads, processes -----------------------------------------------------------

    def test_what_returned_is_seen_by_everybody_at_once(self, store: ObjectStore) -> None:
        other = self.another(store)
        for number in range(10):
            name = f"turn-{number}/name"
            put = store.put if number % 2 else store.put_if_absent
            with pytest.raises(ObjectNotFoundError):
                other.head(name)
            put(name, _CONTENT)
            assert other.head(name).size_bytes == len(_CONTENT)
            assert bytes(other.get(name)) == _CONTENT
            assert listed(other) == [name]
            folders = list(other.list_folders())
            assert folders == [f"turn-{number}"] or (
                self.LISTS_EMPTY_FOLDERS and f"turn-{number}" in folders
            )
            store.delete([name])
            with pytest.raises(ObjectNotFoundError):
                other.get(name)
            assert listed(other) == []

    def test_deletion_is_fine_with_missing_names(self, store: ObjectStore) -> None:
        store.put("folder/name", b"")
        store.delete([])
        store.delete(["folder/name", "folder/name", "folder/other", "other", "folder"])
        store.delete(["folder/name"])
        assert self.raw_objects(store) == {}

    def test_threads_do_not_disturb_each_other(self, store: ObjectStore) -> None:
        def work(number: int) -> None:
            for turn in range(10):
                name = f"{number}/{turn}"
                content = f"{number} {turn}".encode() * 500
                store.put(name, [content[:100], content[100:]])
                assert bytes(store.get(name)) == content
                assert bytes(store.get_range(name, 50, 100)) == content[50:150]
                assert f"{number}/{turn}" in listed(store, f"{number}")
                if turn % 2:
                    store.delete([name])

        in_threads(work, range(_THREADS))
        names = [f"{number}/{turn}" for number in range(_THREADS) for turn in range(0, 10, 2)]
        assert listed(store) == sorted(names)

    def test_a_copy_for_another_process_is_as_good(self, store: ObjectStore) -> None:
        unused = self.another(store)
        store.put("name", _CONTENT)
        used = self.another(store)
        for copy in (unused, used, self.another(used)):
            assert copy.url == store.url
            assert bytes(copy.get("name")) == _CONTENT
            with pytest.raises(StoreError):
                copy.put_if_absent("name", b"")


def listed(store: ObjectStore, prefix: str = "") -> list[str]:
    """Return the names below *prefix* in sorted order."""
    return sorted(info.path for info in store.list(prefix))


def in_threads(work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Run *work* on all items in eight threads, and raise the first error."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))
