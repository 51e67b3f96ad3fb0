"""
The generated parts of the pages, by name: a table, and a figure where one helps.

A block is made of JSON files in the folder of the results only.  The name of a block is that between the markers of a
page.  A block whose results are missing says so.
"""

from __future__ import annotations

from bench.harness.blocks import curves, elsewhere, library, peers, scale
from bench.harness.blocks.source import Block, Source
from bench.harness.figures import Ratio

BLOCKS: dict[str, Block] = {
    **peers.BLOCKS,
    **curves.BLOCKS,
    **scale.BLOCKS,
    **library.BLOCKS,
    **elsewhere.BLOCKS,
}


def ratios(source: Source) -> dict[str, Ratio]:
    """Return all ratios that the check compares."""
    return {**peers.ratios(source), **curves.ratios(source), **scale.ratios(source)}


__all__ = ["BLOCKS", "Block", "Source", "ratios"]
