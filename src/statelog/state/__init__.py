"""
Keyed state: tables, the changes that bring them forward, and snapshots.

    schema     what a processor declares, and how it may change
    heap       dictionary tables, expiry, the memory budget
    columnar   sorted runs of columns, for state beyond the budget
    encoding   values, deltas, changes and snapshot files as bytes
    objects    value, list and map state as a processor holds them; keys: key hash and key groups
    reader     state as of a checkpoint as Arrow tables, for everything outside the job
"""
