"""
Flink's changelog: writes appended changes to files, and reads them back.

    writer    numbered change sets of one task, and the futures of `persist`; api: its protocol
    upload    schedulers that gather change sets into files, with retries
    registry  who owns a file
    local_recovery, local_registry, download_cache   copies of files on this host
    reader    verified changes out of handles; storage puts all of it together
"""

from statelog.first_use import public_names
from statelog.flink_names import unknown_name

_first_use, __dir__, __all__ = public_names(__name__, unknown_name)


def __getattr__(name: str) -> object:
    value = _first_use(name)
    # At its import, the errors of these classes learn what to write in place of Flink's spellings.
    from statelog.changelog import spellings  # noqa: F401

    return value
