"""The state of a history, and the query that continues it after an edit."""

from tests.support.locations.histories import History, rows_of

from statelog.checkpoint.history import Entries
from statelog.state.reader import StateReader


def location_of(history: History) -> str:
    return history.store.local_root


def states(history: History, checkpoint_id: int | None = None) -> dict:
    """Return the rows of all variables that have not expired at the last micro-batch."""
    with StateReader.open(location_of(history), checkpoint_id) as reader:
        return {
            one.name: rows_of(reader.table(one.name, now_ms=history.now_ms))
            for one in reader.variables()
        }


def restarted(history: History) -> History:
    """Let the query of a history start again."""
    base = history.restart()
    history.checkpoint_id = base.checkpoint_id
    history.taken_at_ms[base.checkpoint_id] = history.now_ms
    return history


def newest_id(history: History) -> int:
    return Entries(history.store).newest().checkpoint_id
