"""The state of a history, and the query that continues it after an edit."""

from tests.support.locations.histories import History, Model, rows_of

from statelog.checkpoint.history import Entries
from statelog.state.reader import StateReader


def location_of(history: History) -> str:
    return history.store.local_root


def states(history: History, checkpoint_id: int | None = None) -> dict:
    """Return the rows of all variables that have not expired at the last micro-batch."""
    with StateReader.open(location_of(history), checkpoint_id) as reader:
        names = [variable.name for variable in reader.variables()]
        return {name: rows_of(reader.table(name, now_ms=history.now_ms)) for name in names}


def forget_in_model(model: Model, number: int) -> None:
    model.timers.pop(number, None)
    for entries in model.entries.values():
        entries.pop(number, None)


def restarted(history: History) -> History:
    """Let the query of a history start again."""
    base = history.restart()
    history.checkpoint_id = base.checkpoint_id
    history.taken_at_ms[base.checkpoint_id] = history.now_ms
    return history


def newest_id(history: History) -> int:
    return Entries(history.store).newest().checkpoint_id
