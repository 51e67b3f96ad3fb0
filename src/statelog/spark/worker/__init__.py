"""
One task of one micro-batch, in a Python worker.

    protocol        what the driver sends (`TaskSpec`) and what the task answers (`TaskAck`)
    task            what Spark calls with a partition: catch up, read the input, run the processor, append the changes, acknowledge
    kept_states     what the process keeps between tasks: the state, its store and its changelog
    garbage         what the garbage collector does not visit, and when it runs
    task_input      all rows at once, or parts of them from the local disk (large_input, spill_file)
    processor_run   the processor over the keys of the task, with the state objects of `handle`; the faces of Rows and pandas
    due_timers      the timers that are due after the rows
    output_parts    the output rows as record batches, and the changes into the changelog
    extension       what extensions add to the task

Other packages use `protocol`, `task`, `task_input`, `processor_run`, `handle` and
`failures`, and extensions use `extension` and `output_parts`.
"""
