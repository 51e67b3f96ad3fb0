"""Local disk: what is durable when, and what a full or forbidden disk says."""

import os
import pickle
import secrets
import subprocess
from pathlib import Path

import pytest
from tests.support.processes.script import run_script

from statelog.errors import ObjectExistsError, StoreError, UsageError
from statelog.store import open_store
from statelog.store.local_disk import can_write, write_object

PRELUDE = """
import os, pathlib, resource, sys
from statelog.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from statelog.store import open_store

def failing(call, *marks):
    try:
        call()
    except StoreError as error:
        assert not isinstance(error, (ObjectExistsError, ObjectNotFoundError)), repr(error)
        text = str(error)
        assert "\\n" not in text and len(text) < 900, text
        for mark in (*marks, sys.argv[1]):
            assert mark in text, (mark, text)
    else:
        raise AssertionError("no error")

root = pathlib.Path(sys.argv[1])
files = lambda: sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
"""


def run(script: str, root: Path) -> None:
    run_script(PRELUDE + script, str(root), timeout_s=60)


@pytest.fixture
def synced(monkeypatch):
    """Paths of what is synced, in order."""
    real, paths = os.fsync, []

    def fsync(descriptor):
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("this system has no /proc to tell which file is synced")
    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_a_put_syncs_the_file_and_then_the_folders(tmp_path, synced):
    open_store(str(tmp_path)).put("a/b/name", b"x")
    assert synced[0].startswith(str(tmp_path / "a/b/name#"))
    assert synced[1:] == [str(tmp_path / folder) for folder in ("a/b", "a", ".")]


def test_a_commit_syncs_the_bytes_before_the_name_exists(tmp_path, synced, monkeypatch):
    seen = []
    counting = os.fsync
    name = tmp_path / "a/name"
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(name.exists()), counting(fd)))
    open_store(str(tmp_path)).put_if_absent("a/name", b"x")
    assert synced[0].startswith(str(tmp_path / "tmp") + "/a-name-")
    assert synced[1:] == [str(tmp_path / "a"), str(tmp_path)]
    assert seen == [False, True, True]


def test_a_new_root_is_durable_too(tmp_path, synced):
    open_store(str(tmp_path / "new" / "job")).list_folders()
    assert sorted(synced) == [str(tmp_path), str(tmp_path / "new")]


@pytest.mark.parametrize("fsync", [False, "false"])
def test_without_fsync_nothing_is_synced(tmp_path, synced, fsync):
    store = open_store(str(tmp_path / "new"), storage_options={"fsync": fsync})
    for copy in (store, pickle.loads(pickle.dumps(store))):
        copy.put(f"a/{id(copy)}", b"x")
        copy.put_if_absent(f"b/{id(copy)}", b"x")
    assert synced == []


def test_stores_that_sync_themselves_ignore_the_option():
    for url in ("memory://without", "s3://bucket/job"):
        assert url in open_store(url, storage_options={"fsync": "false"}).url


def test_a_commit_that_cannot_be_synced_is_no_commit(tmp_path, monkeypatch):
    store = open_store(str(tmp_path))

    def broken(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreError, match=r"put-if-absent a/name in file:.* failed: .*Input/output"):
        store.put_if_absent("a/name", b"x")
    assert [] == [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_deleted_temporary_file_does_no_harm(tmp_path, monkeypatch):
    store = open_store(str(tmp_path))
    real = os.fsync

    def sweeping(descriptor):
        real(descriptor)
        for path in (tmp_path / "tmp").glob("*"):
            if (tmp_path / "a/name").exists():
                path.unlink()

    monkeypatch.setattr(os, "fsync", sweeping)
    store.put_if_absent("a/name", b"x")
    monkeypatch.undo()
    with pytest.raises(ObjectExistsError):
        store.put_if_absent("a/name", b"y")
    assert bytes(store.get("a/name")) == b"x"


def test_empty_folders_go_with_their_last_object(tmp_path):
    store = open_store(str(tmp_path / "job"))
    store.put("chk-1/deep/name", b"x")
    store.put_if_absent("chk-2/_metadata", b"x")
    store.delete(["chk-1/deep/name", "chk-2/_metadata"])
    assert [] == list((tmp_path / "job").iterdir())
    store.put("chk-3/name", b"x")
    assert store.list_folders() == ["chk-3"]


@pytest.mark.parametrize("name", ["", "a//b", "../x", "a/../../x", "/absolute", "a/."])
def test_a_wrong_name_never_leaves_the_root(tmp_path, name):
    store = open_store(str(tmp_path / "job"))
    for call in (store.put, store.put_if_absent):
        try:
            call(name, b"x")
        except (UsageError, StoreError) as error:
            assert "\n" not in str(error)
    outside = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(tmp_path / "job") for path in outside)


@pytest.mark.parametrize(("start", "length"), [(-1, 3), (0, -1)])
def test_a_negative_range_is_refused(tmp_path, start, length):
    with pytest.raises(UsageError, match="invalid range"):
        open_store(str(tmp_path)).get_range("name", start, length)


def test_an_object_below_a_regular_file_is_refused(tmp_path):
    run(
        """
(root / "file").write_text("x")
store = open_store(str(root))
for call in (store.put, store.put_if_absent):
    failing(lambda: call("file/name", b"x"), "put", "file/name", "a part of the path is a file")
failing(lambda: store.get("file/name"), "get file/name", "a part of the path is a file")
failing(lambda: open_store(str(root / "file" / "job")).put("name", b"x"), "cannot open store")
assert files() == ["file"], files()
""",
        tmp_path,
    )


def test_a_lack_of_permission_is_named_with_a_hint(tmp_path):
    tmp_path.chmod(0o755)
    run(
        """
store = open_store(str(root))
store.put("old/name", b"x")
(root / "old" / "name").chmod(0o000)
(root / "old").chmod(0o555)
root.chmod(0o555)
list(store.list())
if os.getuid() == 0:
    os.seteuid(65534)  # all threads of the process
hint = "check the folders' owner and mode"
for call in (store.put, store.put_if_absent):
    failing(lambda: call("new/name", b"x"), "put", "new/name", hint)
    failing(lambda: call("old/other", b"x"), "put", "old/other", hint)
failing(lambda: store.get("old/name"), "get old/name", hint)
failing(lambda: store.delete(["old/name"]), "delete old/name", hint)
failing(lambda: open_store(str(root / "new")).put("name", b"x"), "cannot open store", hint)
assert files() == ["old/name"], files()
if os.getuid() == 0:
    os.seteuid(0)
root.chmod(0o755)
(root / "old").chmod(0o755)
""",
        tmp_path if os.getuid() else _open_to_all(tmp_path),
    )


def _open_to_all(path: Path) -> Path:
    """Let an unprivileged user walk to *path*."""
    for parent in (path, *path.parents):
        if parent.owner() == "root" and parent.name.startswith(("pytest-", "popen-", "test_")):
            parent.chmod(0o755)
    return path


FULL = """
for fsync in (True, False):
    store = open_store(str(root / "job"), storage_options={"fsync": fsync})
    store.put(f"small-{fsync}", b"x")
    for call in (store.put, store.put_if_absent):
        data = [b"x" * 100_000] * 20
        failing(lambda: call("a/large", data), "a/large", "the disk or quota is full")
        assert not any("large" in info.path for info in store.list())
        assert not any("large" in name for name in files()), files()
    store.put_if_absent(f"after/{fsync}", b"goes on")
"""


def test_a_write_that_reaches_a_limit_leaves_no_object(tmp_path):
    run("resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n" + FULL, tmp_path)


def test_a_full_disk_is_named_and_leaves_no_object(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        run(FULL, tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("location", ["/", "file:///"])
def test_a_store_at_the_root_of_the_file_system(tmp_path, location):
    store = open_store(location)
    name = str(tmp_path.resolve().relative_to("/"))
    store.put(f"{name}/put", b"content")
    store.put_if_absent(f"{name}/folder/created", b"content")
    assert b"content" == bytes(store.get(f"{name}/put"))
    assert {f"{name}/put", f"{name}/folder/created"} == {info.path for info in store.list(name)}
    store.delete([f"{name}/put"])
    assert not (tmp_path / "put").exists()


@pytest.mark.parametrize("make", [str, "memory://absolute-{}".format])
def test_an_absolute_name_is_refused(tmp_path, make):
    store = open_store(make(tmp_path))
    for call in (
        lambda: store.put("/folder/object", b"content"),
        lambda: store.put_if_absent("/folder/object", b"content"),
        lambda: store.get("/folder/object"),
        lambda: list(store.list("/folder")),
    ):
        with pytest.raises(UsageError, match="a name in a store must be relative to its root"):
            call()
    assert [] == list(tmp_path.iterdir())


PIECES = [b"one", b"", bytearray(b"two"), memoryview(b"three"), b"4" * 5000]
WHOLE = b"".join(bytes(piece) for piece in PIECES)


@pytest.mark.parametrize("most", [1, 2, 4, 1000, 10**6])
def test_a_short_write_goes_on(tmp_path, monkeypatch, most):
    real = os.writev

    def short(descriptor: int, pieces: list[memoryview]) -> int:
        taken, room = [], most
        for piece in pieces:
            taken.append(piece[:room])
            room -= len(taken[-1])
        return real(descriptor, taken)

    monkeypatch.setattr(os, "writev", short)
    write_object(str(tmp_path), "a/b", PIECES, fsync=False)
    assert WHOLE == (tmp_path / "a/b").read_bytes()


def test_more_pieces_than_one_call_takes_are_written(tmp_path):
    pieces = [str(number).encode() for number in range(3000)]
    open_store(str(tmp_path), storage_options={"fsync": False}).put("many", pieces)
    assert b"".join(pieces) == (tmp_path / "many").read_bytes()


def test_an_incomplete_file_is_no_object(tmp_path, monkeypatch):
    store = open_store(str(tmp_path), storage_options={"fsync": True})
    seen = []
    real = os.rename

    def looking(source: str, target: str) -> None:
        seen.append([info.path for info in store.list()])
        real(source, target)

    monkeypatch.setattr(os, "rename", looking)
    store.put("dstl/name", b"content")
    assert [[]] == seen
    assert ["dstl/name"] == [info.path for info in store.list()]


@pytest.mark.parametrize("name", ["a", "a/b.c", "job_1", "a-b/c=d/_metadata", "x@1"])
def test_plain_names_are_written_here(name):
    assert can_write(name)


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a//b", ".", "..", "../a", "a/../b", "a/.", "a b", "a%b", "a#1", "ä"],
)
def test_names_that_obstore_may_escape_are_left_to_it(name):
    assert not can_write(name)


@pytest.mark.parametrize("name", ["a b/c", "50%/x", "ä/ö"])
def test_odd_names_come_back_as_they_were(tmp_path, name):
    store = open_store(str(tmp_path), storage_options={"fsync": False})
    store.put(name, PIECES)
    assert WHOLE == bytes(store.get(name))
    assert [name] == [info.path for info in store.list()]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "secret").write_bytes(b"precious")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["recordings/seen", "recordings/see n"])
@pytest.mark.parametrize("fsync", [True, False])
def test_a_link_under_a_temporary_name_is_not_written_through(root, victim, name, fsync):
    (root / "recordings").mkdir()
    for number in range(1, 4):
        (root / f"{name}#{number}").symlink_to(victim / "secret")
    open_store(str(root), storage_options={"fsync": fsync}).put(name, b"bytes of a key")
    assert (victim / "secret").read_bytes() == b"precious"
    assert bytes(open_store(str(root)).get(name)) == b"bytes of a key"


def test_a_temporary_name_that_was_guessed_is_not_used(root, victim, monkeypatch):
    guesses = iter([7, 8, 9])
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(guesses))
    (root / "name#7").symlink_to(victim / "secret")
    (root / "name#8").symlink_to(victim / "absent")
    write_object(str(root), "name", b"data", fsync=False)
    assert (victim / "secret").read_bytes() == b"precious"
    assert sorted(path.name for path in victim.iterdir()) == ["secret"]
    assert (root / "name").read_bytes() == b"data"
    assert [] == list(guesses)


@pytest.mark.parametrize("options", [{}, {"backend": "fsspec"}])
@pytest.mark.parametrize("url", ["{}", "file://{}", "local://{}"])
def test_no_operation_passes_a_folder_that_leads_out(root, victim, options, url):
    pytest.importorskip("fsspec")
    (root / "taskowned").symlink_to(victim)
    (root / "secret").symlink_to(victim / "secret")
    (root / "real").mkdir()
    (root / "real" / "object").write_bytes(b"ours")
    store = open_store(url.format(root), storage_options=options)
    for path in ("taskowned/secret", "secret"):
        for read in (store.get, store.head, lambda name: store.get_range(name, 0, 4)):
            with pytest.raises(StoreError, match="leads out"):
                read(path)
        with pytest.raises(StoreError, match="leads out"):
            store.put_if_absent(path, b"overwritten")
        with pytest.raises(StoreError, match="leads out"):
            store.delete([path])
    for path in ("taskowned/secret", "taskowned/new"):
        with pytest.raises(StoreError, match="leads out"):
            store.put(path, b"x")
    assert (victim / "secret").read_bytes() == b"precious"
    assert os.listdir(victim) == ["secret"]
    assert "taskowned/secret" not in {info.path for info in store.list()}
    assert "real/object" in {info.path for info in store.list()}
    assert [] == list(store.list("taskowned"))
    assert "taskowned" not in store.list_folders()
    assert [] == list(store.list_folders("taskowned"))


@pytest.mark.parametrize("name", ["secret", "folder/secret", "folder/sec ret"])
@pytest.mark.parametrize("fsync", [True, False])
def test_a_link_under_the_name_of_an_object_is_not_written_through(root, victim, name, fsync):
    (root / "folder").mkdir()
    (root / name).symlink_to(victim / "secret")
    store = open_store(str(root), storage_options={"fsync": fsync})
    try:
        store.put(name, b"new")
    except StoreError as error:
        assert "leads out" in str(error)
    else:
        assert (root / name).read_bytes() == b"new"
        assert not (root / name).is_symlink()
    assert (victim / "secret").read_bytes() == b"precious"


@pytest.mark.parametrize("folder", ["tmp", "a"])
def test_a_commit_passes_no_folder_that_leads_out(root, victim, folder):
    (root / folder).symlink_to(victim)
    with pytest.raises(StoreError, match="leads out"):
        open_store(str(root)).put_if_absent("a/name", b"x")
    assert os.listdir(victim) == ["secret"]


def test_no_folder_that_leads_out_is_entered(root):
    (root / "dstl").mkdir()
    (root / "dstl" / "everything").symlink_to("/proc")
    (root / "dstl" / "object").write_bytes(b"x")
    assert [info.path for info in open_store(str(root)).list()] == ["dstl/object"]


def test_links_within_the_directory_are_followed(root, tmp_path):
    (root / "real" / "inner").mkdir(parents=True)
    (root / "real" / "object").write_bytes(b"x")
    (root / "real" / "inner" / "object").write_bytes(b"y")
    (root / "alias").symlink_to(root / "real")
    (root / "out").symlink_to("/usr")
    (tmp_path / "link").symlink_to(root)  # the location itself may be a link
    store = open_store(str(tmp_path / "link"))
    assert bytes(store.get("alias/object")) == bytes(store.get("real/object")) == b"x"
    names = sorted(info.path for info in store.list())
    assert names == ["alias/inner/object", "alias/object", "real/inner/object", "real/object"]
    assert store.list_folders() == ["alias", "real"]
