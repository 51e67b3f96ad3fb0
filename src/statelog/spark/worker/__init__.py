"""
One task of one micro-batch, in a Python worker.

    protocol        what the driver sends (`TaskSpec`) and what the task answers (`TaskAck`)
    task_entry      the functions that Spark calls with a partition
    task            catch up, read the input, run the processor, append the changes, acknowledge
    processor_run   the processor over the keys of the task, with the state objects of `handle`
    batch_task      the same over a batch frame, whose state is discarded
"""
