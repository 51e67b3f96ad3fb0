"""
State as sorted columns in memory-mapped files on the host.

    sorted_run    one run: the sorted rows of some key groups, and the look-up of keys
    run_files     runs as files of the host that a later worker finds, and where a worker keeps its state
    run_set       the runs of one process: which keys are in columns, and in which file;
                  keys moved into the dict tables, and both together in the layout of a snapshot
"""
