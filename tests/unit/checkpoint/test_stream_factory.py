"""Streams for snapshots, rule by rule as Flink has them."""

import threading

import pytest
from tests.support.stores.dict_store import DictStore

from statelog.checkpoint import (
    CheckpointedStateScope,
    Entropy,
    FsCheckpointStreamFactory,
    read_materialized,
)
from statelog.checkpoint.stream_factory import (
    MAX_FILE_STATE_THRESHOLD,
    FsCheckpointStateOutputStream,
)
from statelog.errors import (
    ClosedError,
    CorruptionError,
    ObjectNotFoundError,
    StoreError,
    UsageError,
)
from statelog.format.buffers import checksum
from statelog.model import ByteStreamStateHandle, FileStateHandle, KeyGroupRange, MaterializedHandle
from statelog.options import load_options
from statelog.store import LocationPaths, open_store

EXCLUSIVE, SHARED = CheckpointedStateScope.EXCLUSIVE, CheckpointedStateScope.SHARED


@pytest.fixture
def store() -> DictStore:
    return DictStore()


def factory(store, **more) -> FsCheckpointStreamFactory:
    folders = {"exclusive_directory": "chk-5", "shared_directory": "shared"}
    return FsCheckpointStreamFactory(store, **{**folders, "threshold_bytes": 100, **more})


def stream_of(store, scope=EXCLUSIVE, **more) -> FsCheckpointStateOutputStream:
    return factory(store, **more).create_checkpoint_state_output_stream(scope)


def written(store, size, *, scope=EXCLUSIVE, **more):
    stream = stream_of(store, scope, **more)
    stream.write(bytes(size))
    return stream.close_and_get_handle()


def before_each_put(act):
    """Return what a store does on requests: *act* at each conditional put, with its path."""
    return lambda operation, path: act(path) if operation == "put_if_absent" else None


@pytest.mark.parametrize(("size", "inline"), [(1, True), (99, True), (100, True), (101, False)])
@pytest.mark.parametrize("write_buffer_bytes", [0, 7, 100, 5000])
def test_the_threshold_is_inclusive(store, size, inline, write_buffer_bytes):
    handle = written(store, size, write_buffer_bytes=write_buffer_bytes)
    assert isinstance(handle, ByteStreamStateHandle) is inline
    assert handle.size_bytes == size
    assert len(store.objects) == (0 if inline else 1)


def test_a_threshold_is_between_zero_and_one_mebibyte():
    assert isinstance(written(DictStore(), 1, threshold_bytes=0), FileStateHandle)
    factory(DictStore(), threshold_bytes=MAX_FILE_STATE_THRESHOLD)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"threshold_bytes": MAX_FILE_STATE_THRESHOLD + 1}, "must be at most 1048576"),
        ({"threshold_bytes": -1, "write_buffer_bytes": -1}, r"threshold_bytes is -\d+; .* least 0"),
        (
            {"threshold_bytes": MAX_FILE_STATE_THRESHOLD + 1, "write_buffer_bytes": -1},
            r"write_buffer_bytes is -\d+; it must be at least 0",
        ),
        ({"shared_directory": ""}, "directory"),
    ],
)
def test_arguments_are_checked_in_flinks_order(arguments, match):
    with pytest.raises(UsageError, match=match):
        factory(DictStore(), **arguments)


def test_a_buffer_is_at_least_as_large_as_the_threshold():
    with pytest.raises(UsageError, match="smaller than the threshold"):
        FsCheckpointStateOutputStream(DictStore(), "d", threshold_bytes=2, buffer_bytes=1)


@pytest.mark.parametrize("count", [1, 50])
def test_the_store_sees_one_put_for_each_large_state_and_nothing_else(store, count):
    streams = factory(store)
    for _ in range(count):
        stream = streams.create_checkpoint_state_output_stream(SHARED)
        for _ in range(30):
            stream.write(b"0123456789")
            stream.flush()
            stream.sync()
        stream.close_and_get_handle()
        small = streams.create_checkpoint_state_output_stream(EXCLUSIVE)
        small.write(b"x")
        small.close_and_get_handle()
        streams.create_task_owned_state_stream().close()
    assert store.requests == {"put_if_absent": count}
    assert len(store.objects) == count, "every name is new"


def test_scopes_choose_the_folder(store):
    assert written(store, 101).path.startswith("chk-5/")
    assert written(store, 101, scope=SHARED).path.startswith("shared/")
    assert written(store, 1, scope=SHARED).name.startswith("shared/"), "the name it would have had"
    streams = FsCheckpointStreamFactory.for_checkpoint(store, 5, paths=LocationPaths("job"))
    stream = streams.create_task_owned_state_stream()
    stream.write(bytes(30000))
    assert stream.close_and_get_handle().path.startswith("job/taskowned/")
    assert repr(streams) == "File Stream Factory @ job/chk-5"
    assert not streams.can_fast_duplicate(FileStateHandle("a", 1), EXCLUSIVE)


def test_the_handle_has_the_checksum_of_the_whole_object(store):
    stream = stream_of(store)
    for piece in (b"a" * 70, memoryview(b"b" * 70), bytearray(b"c")):
        stream.write(piece)
    with pytest.raises(TypeError):
        stream.write(5)
    assert stream.tell() == 141
    handle = stream.close_and_get_handle()
    content = b"a" * 70 + b"b" * 70 + b"c"
    assert handle.crc32c == checksum([content])
    snapshot = MaterializedHandle(KeyGroupRange(0, 1), 0, handle)
    assert read_materialized(store, snapshot) == content
    store.objects[handle.path] = (content[:-1] + b"d", store.now)
    with pytest.raises(CorruptionError, match="checksum"):
        read_materialized(store, snapshot)
    store.objects[handle.path] = (content[:-1], store.now)
    with pytest.raises(CorruptionError, match="140 bytes instead of 141"):
        read_materialized(store, snapshot)
    del store.objects[handle.path]
    with pytest.raises(ObjectNotFoundError):
        read_materialized(store, snapshot)


def test_an_empty_stream_has_no_handle_and_stays_open():
    stream = stream_of(DictStore())
    stream.write(b"")
    assert stream.close_and_get_handle() is None
    stream.write(b"x")
    assert stream.close_and_get_handle().data == b"x"


def test_closing_discards_and_is_final(store):
    with stream_of(store) as stream:
        stream.write(bytes(5000))
    assert store.requests == {}
    assert stream.closed
    with pytest.raises(ClosedError, match="already been closed and discarded"):
        stream.close_and_get_handle()
    with pytest.raises(ClosedError, match="closed"):
        stream.write(b"x")
    assert stream.write(b"") == 0
    stream.close()


def test_taken_names_are_left_alone_and_others_tried(store):
    names = iter(["taken", "taken", "free"])
    store.put("chk-5/taken", b"not ours")
    assert written(store, 101, new_name=lambda: next(names)).path == "chk-5/free"
    assert store.objects["chk-5/taken"][0] == b"not ours"
    assert store.deleted == []


def test_an_object_whose_answer_was_lost_is_the_streams(store):
    store.on_request = before_each_put(lambda path: "lose")
    handle = written(store, 101)
    assert [handle.path] == list(store.objects)
    assert 1 == store.requests["put_if_absent"]


def test_ten_attempts_then_a_clear_error_and_nothing_left(store):
    def fail(path):
        raise StoreError("no route to host")

    store.on_request = before_each_put(fail)
    stream = stream_of(store)
    stream.write(bytes(101))
    with pytest.raises(StoreError, match=r"101 bytes of state to chk-5/.*10 attempts") as raised:
        stream.close_and_get_handle()
    assert isinstance(raised.value.__cause__, StoreError)
    assert store.requests["put_if_absent"] == 10
    assert store.objects == {}
    with pytest.raises(ClosedError):
        stream.close_and_get_handle()


def test_entropy_takes_the_place_of_its_marker(store):
    entropy = Entropy("_ENT_", 6)
    folder = "a-_ENT_-z/chk-5"
    options = {"exclusive_directory": folder, "entropy": entropy}
    paths = {written(store, 101, **options).path for _ in range(5)}
    assert len({path.split("/")[0] for path in paths}) == 5
    for path in paths:
        first = path.split("/")[0]
        assert (len(first), first[:2], first[-2:]) == (10, "a-", "-z")
        assert first[2:-2].isalnum()
    assert entropy.remove("_ENT_/chk-5/_metadata") == "chk-5/_metadata"
    assert entropy.remove("a-_ENT_-z/m") == "a--z/m"
    assert entropy.inject("plain/x") == entropy.remove("plain/x") == "plain/x"
    assert entropy.inject("_ENT_/_ENT_").endswith("/_ENT_"), "the first one only"
    for arguments in [("", 4), ("m", 0)]:
        with pytest.raises(UsageError):
            Entropy(*arguments)


def test_any_other_error_of_the_store_comes_through_and_leaves_nothing(store):
    def fail(path):
        store.objects[path] = (b"half", store.now)
        raise RuntimeError("a bug of the store")

    store.on_request = before_each_put(fail)
    with pytest.raises(RuntimeError, match="a bug of the store"):
        written(store, 101)
    assert ({}, 1) == (store.objects, store.requests["put_if_absent"])


def test_duplicate_copies_objects_under_their_names_and_passes_inline_state_on(store):
    large, small = written(store, 500, scope=SHARED), written(store, 5)
    streams = factory(store)
    copies = streams.duplicate([large, small], EXCLUSIVE)
    assert [f"chk-5/{large.path.removeprefix('shared/')}", small] == [copies[0].path, copies[1]]
    assert (500, large.crc32c) == (copies[0].size_bytes, copies[0].crc32c)
    assert store.objects[copies[0].path] == store.objects[large.path]
    (again,) = streams.duplicate([large], EXCLUSIVE)  # the name is taken now: a new one
    assert again.path not in (large.path, copies[0].path)
    assert store.objects[again.path] == store.objects[large.path]
    assert not streams.can_fast_duplicate(large, EXCLUSIVE)


@pytest.mark.parametrize("fault", ["damaged", "missing", "store", "foreign", "scope"])
def test_a_duplicate_that_fails_leaves_no_copy(store, fault):
    good, bad = written(store, 500, scope=SHARED), written(store, 600, scope=SHARED)
    before = set(store.objects)
    expected = {"damaged": CorruptionError, "missing": ObjectNotFoundError, "store": OSError}
    if fault == "damaged":
        store.objects[bad.path] = (b"x" * 600, store.now)
    elif fault == "missing":
        before.remove(bad.path)
        del store.objects[bad.path]
    elif fault == "store":
        puts = []

        def fail_from_the_second(path):
            puts.append(path)
            if len(puts) >= 2:
                raise OSError("disk full")

        store.on_request = before_each_put(fail_from_the_second)
    handles = [good, "foreign" if fault == "foreign" else bad]
    with pytest.raises(expected.get(fault, UsageError)):
        factory(store).duplicate(handles, "exclusive" if fault == "scope" else EXCLUSIVE)
    assert before == set(store.objects)


def test_a_duplicate_deletes_no_object_that_may_be_of_another_copy(store):
    """The name is taken, and the store answers with an error: whose the object is, nothing says."""

    def fail_first(path):
        puts.append(path)
        if len(puts) == 1:
            raise StoreError("500", path=path)

    puts = []
    large = written(store, 500, scope=SHARED)
    (first,) = factory(store).duplicate([large], EXCLUSIVE)
    store.on_request = before_each_put(fail_first)
    (second,) = factory(store).duplicate([large], EXCLUSIVE)
    assert [first.path, second.path] == puts
    assert 3 == len({large.path, first.path, second.path} & set(store.objects))


def test_a_factory_from_options_has_their_threshold():
    options = load_options({"stream.data-inline-threshold": 5}, environ={}).stream
    for size, inline in ((5, True), (6, False)):
        streams = FsCheckpointStreamFactory.from_options(DictStore(), 3, options)
        stream = streams.create_checkpoint_state_output_stream(EXCLUSIVE)
        stream.write(bytes(size))
        handle = stream.close_and_get_handle()
        assert inline == isinstance(handle, ByteStreamStateHandle)
        assert inline or handle.path.startswith("chk-3/")
    with pytest.raises(UsageError, match="StreamOptions"):
        FsCheckpointStreamFactory.from_options(DictStore(), 3, {})


def folders_of(root, *names):
    for name in names:
        (root / name).mkdir(parents=True)


def test_absolute_directories_are_those_that_are_named(tmp_path):
    root = tmp_path / "store"
    folders_of(root, "chk-1", "shared", "owned")
    for exclusive in (str(root / "chk-1"), root / "chk-1", f"file://{root}/chk-1", "chk-1"):
        streams = FsCheckpointStreamFactory(
            str(root), exclusive, root / "shared", 0, task_owned_directory=root / "owned"
        )
        stream = streams.create_checkpoint_state_output_stream(EXCLUSIVE)
        stream.write(b"state")
        handle = stream.close_and_get_handle()
        assert handle.path.startswith("chk-1/")
        assert b"state" == (root / handle.path).read_bytes()


def test_directories_outside_of_the_store_are_refused(tmp_path):
    root = tmp_path / "store"
    folders_of(root, "chk-1", "shared")
    outside = (
        tmp_path / "outside",
        f"{root}/../outside",
        f"{root}-next/chk-1",
        "s3://bucket/chk-1",
        root,
        "",
        ".",
    )
    for directory in outside:
        for names in ((directory, "shared"), ("chk-1", directory)):
            with pytest.raises(UsageError, match="below"):
                FsCheckpointStreamFactory(str(root), *names)
    with pytest.raises(UsageError, match=r"not below memory://streams, the root of the store"):
        FsCheckpointStreamFactory("memory://streams", "/chk-1", "shared")
    below = FsCheckpointStreamFactory("memory://streams", "memory://streams/chk-1", "shared", 0)
    assert "File Stream Factory @ chk-1" == repr(below)


def test_a_missing_directory_on_local_disk_is_an_error_that_names_it(tmp_path):
    folders_of(tmp_path, "chk-1")
    with pytest.raises(StoreError, match="directory chk-2 for checkpoint streams does not exist"):
        written(open_store(str(tmp_path)), 101, exclusive_directory="chk-2")
    handle = written(open_store(str(tmp_path)), 101, exclusive_directory="chk-1")
    missing = factory(open_store(str(tmp_path)), exclusive_directory="chk-1")
    with pytest.raises(StoreError, match="directory shared for checkpoint streams"):
        missing.duplicate([handle], SHARED)
    assert [tmp_path / "chk-1"] == list(tmp_path.iterdir())
    assert isinstance(written(open_store(str(tmp_path)), 100), ByteStreamStateHandle)


def test_the_directories_of_a_location_are_made_with_their_first_object(tmp_path):
    streams = FsCheckpointStreamFactory.for_checkpoint(open_store(str(tmp_path)), 7)
    with streams.create_task_owned_state_stream() as stream:
        stream.write(bytes(1 << 21))
        handle = stream.close_and_get_handle()
    assert (tmp_path / handle.path).is_file()


@pytest.mark.parametrize("size", [50, 5000])
def test_a_close_of_another_thread_leaves_a_readable_handle_or_an_error(size):
    store, started, closed = DictStore(), threading.Event(), threading.Event()
    put = store.put_if_absent

    def slow(path, data):
        started.set()
        assert closed.wait(20)
        put(path, data)

    store.put_if_absent = slow
    streams = factory(store, threshold_bytes=0)
    stream = streams.create_checkpoint_state_output_stream(EXCLUSIVE)
    stream.write(b"x" * size)

    def close():
        assert started.wait(20)
        stream.close()
        closed.set()

    thread = threading.Thread(target=close)
    thread.start()
    handle = stream.close_and_get_handle()
    thread.join()
    assert (size, checksum([b"x" * size])) == (handle.size_bytes, handle.crc32c)
    assert [handle] == streams.duplicate([handle], EXCLUSIVE) or len(store.objects) == 2
    with pytest.raises(ClosedError):
        stream.close_and_get_handle()
