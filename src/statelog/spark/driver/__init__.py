"""
The driver's side: one micro-batch in, one checkpoint out.

    batch_times, no_data_batches   when a micro-batch runs, and at which times
    state_location                 claim, restore, what a micro-batch starts from
    engine                         trigger, run the tasks, commit, deliver
    task_runner, batch_cost        the acknowledgements of the tasks; how many tasks come next
    snapshot_planner, skew         which key groups get a snapshot; which keys dominate
"""
