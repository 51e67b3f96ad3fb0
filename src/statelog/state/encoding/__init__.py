"""
State as bytes, and back.

    values          one field of a state variable: Python value and Arrow value
    deltas          the changes of one state variable as columns
    changes         the changes of one operator as values of the changelog
    snapshot_file   tables as Parquet; upgrade: values of an older schema
"""
