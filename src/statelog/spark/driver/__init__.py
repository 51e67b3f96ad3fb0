"""
The driver's side: each micro-batch makes one checkpoint.

    batch_times, no_data_batches   the times of a micro-batch; when one runs without data
    state_location, restart        check and claim the location; check that the sources fit it
    restored_state                 the state that the next micro-batch continues
    location_clean_up              delete what no retained checkpoint needs
    engine                         decide, run the operators, commit, deliver, clean up
    operator_run                   the tasks of one operator; the warning of columns that no row names
    task_runner, delivery          the acknowledgements of the tasks; the output rows to the sink
    extension                      the seam of what adds to micro-batches
    snapshot_planner               which key groups get a snapshot
    batch_reports                  log, callback, metrics, the recorded cost and the warning of skew

`batch_frame` runs the operator over a batch frame.  Other packages use `engine`, `batch_frame`,
`batch_times`, `no_data_batches` and `failures`.
"""
