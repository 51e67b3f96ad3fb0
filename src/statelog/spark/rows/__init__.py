"""
Convert rows between Arrow and the forms that processors use.

    layout                      the columns of a task's input; initial rows, and late rows to drop
    key_order                   the rows sorted by key group and key
    spark_row                   the Rows of each key, and those that the processor yields
    pandas_input, pandas_output the frames of each key, and those that the processor yields
    unfit_output                an item that does not fit, and the call that yielded it
    formats                     the row formats; interface: what a run needs of each of them

`pandas_internals` cuts and joins frames, `pandas_conversion` converts columns.  `types` and
`spark_versions` are used by all packages of `spark`.
"""
