"""
Write the generated blocks of the pages, and their figures, from the results.

The README and the start page have one figure, whose text beside it is generated too.

A block is between `<!-- bench:NAME -->` and `<!-- /bench -->`.  All other text of a page is written by hand and
has no figures of measurements, so that each figure on a page has a JSON file behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bench.harness.blocks import BLOCKS, Block, Source
from bench.harness.blocks.peers import first_figure
from bench.harness.blocks.source import MissingError
from bench.harness.results import ROOT

PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "scale.md")
IMAGES = ROOT / "docs" / "images" / "bench"
STARTS = (ROOT / "README.md", ROOT / "docs" / "index.md")
CHART = ROOT / "docs" / "images" / "throughput.svg"
_MARKED = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench -->)", re.S)


def filled(text: str, images: str, source: Source, blocks: Mapping[str, Block] = BLOCKS) -> str:
    """
    Return a page with its blocks made anew.

    Args:
        text: The page.
        images: The folder of figures, relative to the page.
        source: The results; it gets the figures.
        blocks: What makes each block.

    Raises:
        KeyError: A marker names no block.
    """

    def block(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        try:
            made = blocks[name](source)
        except MissingError as missing:
            command = f'`make bench ARGS="--only {missing}"`'
            made = f"*Not measured yet: {command} does it.*"
        return f"{begin}\n{made.strip().replace('(IMAGES/', f'({images}/')}\n\n{end}"

    return _MARKED.sub(block, text)


_CHART = re.compile(r"!\[[^\]]*\](?=\((?:docs/)?images/throughput\.svg\))")


def with_chart(text: str, alt: str) -> str:
    """Return a page that has the first figure, with the text that says what the figure shows."""
    return _CHART.sub(lambda match: f"![{alt}]", text)


def without_blocks(text: str) -> str:
    """Return what is written by hand."""
    return _MARKED.sub("", text)


def images_from(page: Path) -> str:
    """Return the folder of figures as links of a page name it."""
    up = len(page.relative_to(ROOT / "docs").parts) - 1
    return "../" * up + "images/bench"


def make(folder: Path) -> dict[Path, str]:
    """Return all pages and figures as they should be, by path; the results are in *folder*."""
    source = Source(folder)
    made = {
        page: filled(page.read_text(encoding="utf-8"), images_from(page), source) for page in PAGES
    }
    made |= {IMAGES / f"{name}.svg": svg for name, svg in source.figures.items()}
    svg, alt = first_figure(Source(folder))
    starts = {page: with_chart(page.read_text(encoding="utf-8"), alt) for page in STARTS}
    return made | starts | {CHART: svg}


def out_of_date(folder: Path) -> list[Path]:
    """Return the files that differ from what the results say, and figures that no page shows."""
    made = make(folder)
    differ = [
        path
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    return differ + [path for path in sorted(IMAGES.glob("*.svg")) if path not in made]


def write(folder: Path) -> list[Path]:
    """Write the pages and figures, remove figures that no page shows, and return what changed."""
    made, changed = make(folder), out_of_date(folder)
    for path in changed:
        if path in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
        else:
            path.unlink()
    return changed
