"""A shared directory that another user prepared: no write, read or listing leaves it."""

import os
import secrets
from pathlib import Path

import pytest

from statelog.errors import StoreError
from statelog.store import open_store
from statelog.store.local_disk import write_object


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
