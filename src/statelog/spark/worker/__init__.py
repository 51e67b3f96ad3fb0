"""
One task of one micro-batch, in a Python worker.

    protocol        what the driver sends (`TaskSpec`) and what the task answers (`TaskAck`)
    task            what Spark calls with a partition: catch up, read the input, run the processor, append the changes, acknowledge
    kept_states     what the process keeps between tasks: the state, its store and its changelog
    connection      the rows come without the delays of TCP
    task_input      all rows at once, or parts of them from the local disk (large_input)
    processor_run   the processor over the keys of the task, with the state objects of `handle`
    single_keys     the faces of processors that are called key by key
    unencodable     the values of state that do not fit their type
    output_parts    the output rows as record batches; task_uploads: the changes into the changelog
    extension       what extensions add to the task; seen_keys: what recordings and dead letters share
    batch_task      a task over a batch frame, whose state is discarded

Other packages use `protocol`, `task`, `batch_task`, `connection`, `processor_run`, `handle`,
`failures`, `stopwatch`, and extensions use `extension`, `run`, `output_parts` and `seen_keys`.
"""
