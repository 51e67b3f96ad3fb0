"""
Keyed state: tables, the changes that update them, and snapshots of them.

    kinds      value, list, map, timer: all that is particular to a kind of state
    schema     what a processor declares, and how it may change
    heap       dict tables, overlays, expiry, the memory budget
    encoding   values, deltas, changes and snapshot files as bytes
    objects    the state objects that a processor uses; keys: key hash, key groups, and an index of keys
    columnar   sorted runs of columns, for state beyond the budget
    replay     the log applied to the tables, or to columns
    cache      what a process keeps of state, brought to a checkpoint; keyed_state: as Python objects
    reader     state as of a checkpoint as Arrow tables, for everything outside the job
"""
