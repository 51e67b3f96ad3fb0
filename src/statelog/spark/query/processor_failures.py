"""Describe an error of a user's processor for a message."""

from __future__ import annotations

from statelog.errors import UsageError


class ProcessExit(SystemExit):
    """A processor called `os._exit`."""


def described(error: BaseException) -> str:
    """Return the error as a clause for the middle of a message."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, SystemExit):
        call = str(error) if isinstance(error, ProcessExit) else f"sys.exit({error.code!r})"
        return (
            f"it called {call}, but a processor must not end its process: raise an exception to "
            "fail the micro-batch, or return to continue"
        )
    return f"{type(error).__name__}: {error}"
