"""
What a person does to a state location, without Spark.

    savepoints     tags and forks, as they are asked for; fork: the steps of a fork, begun_fork continues one
    copy_location  a copy of a location; copy_plan: which objects, in which order
    rewind         a query and its state taken back to an earlier micro-batch, and whether that is possible
    position_files the checkpointLocation of a query at one of its micro-batches
    repair         a damaged location made readable again
    edit_keys      keys set and deleted from Python; edit_files: from Parquet files
    forget_key     a key removed, from its state and from its objects, and what makes each of them go away;
                   key_traces: which objects hold it
    key_edits      what is set and deleted, by key group, as deltas
    change_writer  deltas as a log handle, and a snapshot of what a reader returns

Each name is imported from its module, so that a tag does not load what an edit needs.
"""
