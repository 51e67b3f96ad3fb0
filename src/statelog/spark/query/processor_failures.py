"""How an error of a user's processor reads, wherever it is reported."""

from __future__ import annotations

from statelog.errors import UsageError


class ProcessExit(SystemExit):
    """A processor asked for the end of its process."""


def described(error: BaseException) -> str:
    """Return what a processor did wrong, as the middle of a sentence."""
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, SystemExit):
        call = str(error) if isinstance(error, ProcessExit) else f"sys.exit({error.code!r})"
        return (
            f"it called {call}, but a processor does not end its process: raise an exception to "
            "fail the micro-batch, or return to go on"
        )
    return f"{type(error).__name__}: {error}"
