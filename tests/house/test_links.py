"""Links between the pages of the project lead to files and headings that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import ROOT, breaches, text_of

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)

PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "tests/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page, as the site and GitHub make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in HEADING.findall(text))
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def broken(path: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found = []
    for target in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        name, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        other = (path.parent / name).resolve() if name else path
        if not other.exists() or (anchor and anchor not in anchors(other)):
            found.append(target)
    return found


def leaving_the_site(path: Path) -> Iterator[str]:
    """Yield the links of a page to files outside of docs/."""
    for target in LINK.findall(CODE.sub("", text_of(path))):
        file = target.partition("#")[0]
        is_local = not re.match(r"[a-z]+:|#", target)
        if is_local and (ROOT / "docs") not in (path.parent / file).resolve().parents:
            yield target


def test_every_link_leads_somewhere() -> None:
    assert {} == breaches(PAGES, broken)


def test_a_page_of_the_site_links_within_docs() -> None:
    assert {} == breaches(sorted((ROOT / "docs").rglob("*.md")), leaving_the_site)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    listed = set(re.findall(r'"([\w./-]+\.md)"', navigation))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert listed == pages


def test_the_check_finds_what_it_is_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](other.md) `[d](e.md)`\n", encoding="utf-8")
    assert ["#two", "other.md"] == broken(page)
