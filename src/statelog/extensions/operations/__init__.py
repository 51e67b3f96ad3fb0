"""
Operations on a state location, without Spark.

    savepoints     a checkpoint kept under a name, with the position of its sources
    fork           a second query that goes on from a checkpoint
    copy_location  a copy of a location; copy_plan: which objects, in which order
    rewind         a query and its state taken back to an earlier micro-batch
    position_files the checkpointLocation of a query at one of its micro-batches, and whether it fits the state
    repair         a damaged location made readable again
    edit_keys      keys set and deleted, from Python or Parquet files; frozen keys released
    forget_key     a key removed, from its state and from its objects, and what makes each of them go away;
                   key_traces: which objects hold it
    commands       the verbs for all of them

All commit, claim and pin by `statelog.checkpoint.edit`, which writes the audit line too.
Each name is imported from its module, so that a tag does not load what an edit needs.
"""
