"""
The driver side of the engine: each micro-batch creates one checkpoint.

    batch_times, no_data_batches   the times of a micro-batch; when one runs without data
    state_location, restart        check, claim and clean up the location; check that the sources fit it
    engine                         decide, run the operators, commit, deliver, clean up
    operator_run                   the tasks of one operator; the warning of columns that no row names
    delivery                       run the tasks, and deliver the output rows to the sink
    extension                      the seam of what adds to micro-batches
    batch_reports                  log, callback, metrics, the recorded cost and the warning of skew

`batch_frame` runs the operator over a batch frame, whose state is discarded.  Other packages use
`engine`, `batch_frame`, `batch_times`, `no_data_batches` and `failures`.
"""
