"""
Encode state as bytes, and decode it.

    converters      one value, or a column: the user's, the one state keeps, Arrow's
    values          tuples of values and keys as Arrow columns
    deltas          one state variable: deltas as operations, cells as a column, earlier schemas
    changes         the changes of one operator as values of the changelog
    snapshot_file   tables as Parquet
"""
