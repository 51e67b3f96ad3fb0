"""
State as sorted columns in mapped files of the host.

    sorted_run   one run: the sorted rows of some key groups, and the look-up of keys
    replay       changes applied to a run at once
    run_files    runs as files that a later worker finds
    run_set      the runs of one process: which keys are in columns, which are in dictionaries
"""
