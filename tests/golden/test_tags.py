"""A tag and the reference of a fork to its parent, as files that must be read for ever."""

from pathlib import Path

from statelog.checkpoint.retained import Tag, TagKind
from statelog.checkpoint.tags import read_tag
from statelog.store import PATHS, open_store
from statelog.store.parents import ParentReference
from statelog.store.paths import parse_tag

VECTORS = Path(__file__).parent / "vectors"
FORK = "00112233445566778899aabbccddeeff"[:16]


def test_a_tag_is_read() -> None:
    store = open_store(str(VECTORS))
    made = Tag(kind=TagKind.TAG, name="v1", checkpoint_id=7, path="tag_v1.bin")
    content = read_tag(store, made)
    assert (1_700_000_000_000, {"comment": "before ü", "batch_id": 7}) == (
        content.created_at_ms,
        content.facts,
    )
    assert {"offsets/7": b'v1\n{}\n{"logOffset":7}', "commits/7": b"v1\n{}"} == content.files


def test_a_reference_to_a_parent_is_read(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(PATHS.parent(FORK), (VECTORS / "parent_v1.bin").read_bytes())
    expected = ParentReference(location="s3://bucket/jobs/totals", checkpoint_id=7)
    assert expected == ParentReference.read(store, FORK)


def test_the_names_of_tags() -> None:
    attempt = "0123456789abcdef"
    assert ("tag", "v1.2_x-y", 7, 0) == parse_tag(f"tags/tag/v1.2_x-y/7-{attempt}")
    assert ("reader", "feed", 7, 100) == parse_tag(f"tags/reader/feed/7+100-{attempt}")
    for name in ("tags/tag/v1/7", f"tags/tag/v1/x-{attempt}", f"tags/tag/../7-{attempt}", "tags"):
        assert parse_tag(name) is None
