"""The claims and checkpoints of a state location."""

from contextlib import suppress
from pathlib import Path

from statelog.checkpoint.history import Entry, present_ids, read_entry
from statelog.errors import ObjectNotFoundError
from statelog.format.buffers import Buffer
from statelog.format.checkpoint_record import CHECKPOINT_TAG, ClaimRecord, decode_entry
from statelog.format.segment import parse_segment
from statelog.model import CompletedCheckpoint
from statelog.store import PATHS, open_location


def entries(state: Path | str) -> dict[int, Entry]:
    """Return the claims and checkpoints there are, by number."""
    store = open_location(str(state))
    present: dict[int, Entry] = {}
    for number in present_ids(store):
        with suppress(ObjectNotFoundError):  # SeaweedFS lists a folder for a while without objects
            present[number] = read_entry(store, number)
    return present


def decoded(path: str, data: Buffer) -> CompletedCheckpoint | ClaimRecord:
    """Return the record in the object of an entry."""
    return decode_entry(parse_segment(data).trailer.sections[CHECKPOINT_TAG], where=path)


def claims(state: Path | str) -> list[int]:
    """Return the numbers of the claims, ascending."""
    return [number for number, entry in entries(state).items() if isinstance(entry, ClaimRecord)]


def committed(state: Path) -> list[int]:
    """Return the ids of the checkpoints there are, ascending."""
    return [
        number for number, entry in entries(state).items() if not isinstance(entry, ClaimRecord)
    ]


def objects(state: Path) -> set[str]:
    """Return the names of all objects but the claims."""
    names = {str(path.relative_to(state)) for path in state.rglob("*") if path.is_file()}
    return names - {PATHS.metadata(number) for number in claims(state)}
