"""
Arrow to what a processor sees, and back; one pair of modules for each row format.

    layout, initial_rows        where the columns of the input are
    key_order                   rows by key group and key
    row_input, pandas_input     Rows, or pandas frames, for each key
    row_output, pandas_output   what the processor yields, as record batches
    formats                     the formats; interface: what a run needs of each
"""
