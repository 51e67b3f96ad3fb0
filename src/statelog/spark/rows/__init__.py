"""
Convert rows between Arrow and what a processor handles.

    layout, initial_rows        the columns of a task's input; late_rows: rows to drop
    arrow_limits                how large Spark makes the batches that bring them
    key_order                   the rows sorted by key group and key; hash_order: by key alone
    columnar_input, ..._output  the keys and rows of a task as tables, and the tables it yields
    row_input, pandas_input     the Rows, or the pandas frames, of each key
    row_output, pandas_output   what the processor yields, as record batches; event_time_check
    unfit_output                an item that does not fit; output_calls: the call that yielded it
    unnamed_columns             the output columns that no Row of a task names
    formats                     the row formats; interface: what a run needs of each of them

`pandas_internals` cuts and joins frames.  `types`, `ipc`, `jvm` and `spark_errors` are used by all
packages of `spark`.
"""
