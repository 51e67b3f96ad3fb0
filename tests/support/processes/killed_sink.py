"""Kills a sink in this process, between its write and its commit."""

import contextlib
from typing import Any

import pytest

from statelog.testing.sink_contract import Killed


def killed_in(module: Any) -> contextlib.AbstractContextManager[object]:
    """Return a block in which the sink of a module dies before its commit."""

    def die(name: str) -> None:
        assert "before-sink-commit" == name
        raise Killed

    patch = pytest.MonkeyPatch()
    patch.setattr(module, "fail_point", die)
    return contextlib.closing(_Undone(patch))


class _Undone:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.close = patch.undo
