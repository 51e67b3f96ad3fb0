"""
Slice and join frames, using either pandas' internals or its public API.

pandas' public calls cost more per frame than all other work of a task.  Its internals, which store
the columns of one type as one array (a block), cut a frame into slices and join frames of one form
block by block.  They may change with any version of pandas, so `frame_access` compares both ways on
a small frame on first use and takes the public way where they differ.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import pandas as pd

_log = logging.getLogger("statelog.spark")


class FrameCutter:
    """Cuts row slices from one frame with pandas' public API."""

    def __init__(self, whole: pd.DataFrame, columns: pd.Index) -> None:
        self._whole = whole
        self._columns = columns

    def slice_rows(self, start: int, stop: int) -> pd.DataFrame:
        """Return the rows from *start* up to, but not including, *stop*, indexed from 0."""
        frame = self._whole.iloc[start:stop].reset_index(drop=True)
        frame.columns = self._columns.view()
        return frame


class FrameJoiner:
    """Stores copies of frames with the same form, and joins them with pandas' public API."""

    def __init__(self) -> None:
        self._frames: list[pd.DataFrame] = []

    def add(self, frame: pd.DataFrame) -> None:
        """Store a copy of *frame*."""
        self._frames.append(frame.copy())

    def joined(self) -> pd.DataFrame:
        """Join all frames into one, indexed from 0."""
        return pd.concat(self._frames, ignore_index=True)


class Form(NamedTuple):
    """The form of a frame, equal for frames that can be joined, and its number of rows."""

    key: Hashable
    rows: int


class PublicAccess:
    """Slices and joins frames with pandas' public API."""

    def cutter(self, whole: pd.DataFrame, columns: pd.Index) -> FrameCutter:
        """Return a cutter for *whole* that names the columns of its slices *columns*."""
        return FrameCutter(whole, columns)

    def form_of(self, frame: pd.DataFrame) -> Form:
        """Return the form of *frame*."""
        return Form((*frame.columns.tolist(), *frame.dtypes.tolist()), len(frame))

    def joiner(self, like: pd.DataFrame) -> FrameJoiner:
        """Return a joiner for frames of the same form as *like*."""
        return FrameJoiner()


class _BlockCutter(FrameCutter):
    """Slices the blocks of a frame, without the overhead of `iloc`."""

    def __init__(self, whole: pd.DataFrame, columns: pd.Index) -> None:
        super().__init__(whole, columns)
        self._blocks = whole._mgr
        _ = self._blocks.blknos  # the block of each column: computed once, and taken by slices

    def slice_rows(self, start: int, stop: int) -> pd.DataFrame:
        blocks = self._blocks.get_slice(slice(start, stop), axis=1)
        # Own index objects: they carry names, which a processor may set.
        blocks.axes[0] = self._columns.view()
        blocks.axes[1] = pd.RangeIndex._simple_new(range(stop - start))
        return pd.DataFrame._from_mgr(blocks, blocks.axes)


class _BlockJoiner(FrameJoiner):
    """Joins frames block by block, so that a single conversion handles all of them."""

    def __init__(self, like: pd.DataFrame) -> None:
        self._columns = like.columns
        self._places = list(zip(like._mgr.blknos, like._mgr.blklocs, strict=True))
        self._parts: list[list[np.ndarray]] = []

    def add(self, frame: pd.DataFrame) -> None:
        self._parts.append([block.values.copy() for block in frame._mgr.blocks])

    def joined(self) -> pd.DataFrame:
        # Arrays of datetimes and durations are numpy's inside.
        blocks = [
            np.concatenate([getattr(values, "_ndarray", values) for values in block], axis=1)
            for block in zip(*self._parts, strict=True)
        ]
        columns = {
            position: blocks[block][row] for position, (block, row) in enumerate(self._places)
        }
        frame = pd.DataFrame(columns, copy=False)
        frame.columns = self._columns
        return frame


class BlockAccess(PublicAccess):
    """Slices and joins frames through pandas' blocks."""

    def cutter(self, whole: pd.DataFrame, columns: pd.Index) -> FrameCutter:
        return _BlockCutter(whole, columns)

    def form_of(self, frame: pd.DataFrame) -> Form:
        """Return the form; the blocks list their columns, so none has to be looked up."""
        manager = frame._mgr
        names, rows = manager.axes
        blocks = [
            entry
            for block in manager.blocks
            for entry in (block.dtype, block.mgr_locs.as_array.tobytes())
        ]
        return Form((*names.tolist(), *blocks), len(rows))

    def joiner(self, like: pd.DataFrame) -> FrameJoiner:
        """Return a joiner for frames; pandas.concat handles other classes of blocks."""
        blocks = like._mgr.blocks
        if blocks and all(isinstance(block.dtype, np.dtype) for block in blocks):
            return _BlockJoiner(like)
        return FrameJoiner()


@functools.cache
def frame_access() -> PublicAccess:
    """Return the fastest kind of access that works with the installed pandas."""
    blocks = BlockAccess()
    if agrees_with_public(blocks):
        return blocks
    _log.warning(
        "statelog does not support the internals of pandas %s: it cuts and joins frames "
        "with the public API, which is slower",
        pd.__version__,
    )
    return PublicAccess()


def agrees_with_public(access: PublicAccess) -> bool:
    """Return whether *access* returns the same results as the public API."""
    times = np.array([1, 2, 3], "M8[ns]")
    columns = {0: [1, 2, 3], 1: [0.5, 1.5, 2.5], 2: ["a", None, "c"], 3: times, 4: [4, 5, 6]}
    whole = pd.DataFrame(columns)
    names = pd.Index(list("abcde"))
    public = PublicAccess()
    expected = public.cutter(whole, names).slice_rows(1, 3)
    try:
        part = access.cutter(whole, names).slice_rows(1, 3)
        form = access.form_of(part)
        joiner = access.joiner(part)
        joiner.add(part)
        joiner.add(part)
        both = joiner.joined()
    except Exception as error:  # internals fail in any way when they change
        _log.debug("pandas' internals failed", exc_info=error)
        return False
    twice = pd.concat([expected, expected], ignore_index=True)
    return (
        form.rows == len(expected)
        and form == access.form_of(expected)
        and _same(part, expected)
        and _same(both, twice)
    )


def _same(frame: pd.DataFrame, expected: pd.DataFrame) -> bool:
    return (
        bool(frame.equals(expected))
        and frame.columns.tolist() == expected.columns.tolist()
        and isinstance(frame.index, pd.RangeIndex)
    )
