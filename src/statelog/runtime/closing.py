"""Close several parts, even if closing some of them fails."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

_log = logging.getLogger("statelog")


def close_all(*closes: Callable[[], object]) -> None:
    """
    Call all *closes* in order, then raise the first error, if any.

    Later errors are logged.  An interrupt (Ctrl-C) is raised in preference to an error, after the
    other parts are closed.
    """
    first: BaseException | None = None
    for close in closes:
        try:
            close()
        except BaseException as error:
            late = error
            if first is None or (isinstance(first, Exception) and not isinstance(error, Exception)):
                late = error if first is None else first
                first = error
            if late is not first:
                _log.warning("closing a further part also failed: %r", late)
    if first is not None:
        raise first


def close_after(error: BaseException | None, close: Callable[[], object]) -> None:
    """
    Call *close* at the end of a `with` block that may have ended with *error*.

    An error of *close* is raised if the block succeeded.  If the block failed, it is added to the
    block's error as a note, because the first error explains the failure.
    """
    if error is None:
        close()
        return
    try:
        close()
    except Exception as late:
        error.add_note(f"closing also failed: {type(late).__name__}: {late}")


class ClosesAtExit(Protocol):
    """A part that is closed at the end of a `with` block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        close_after(error, self.close)
