"""
Features: each one is a self-contained folder, and the engine does not name any of them.

A feature is imported at its first use, through a table of the engine: a face through
`statelog.spark.query.face`, what takes part in micro-batches through
`statelog.spark.extension_table`.  Extensions do not import each other.

    columns         processors of columns, their state in slots, and `aggregate`
    recordings      what chosen keys see, for a replay
    bad_records     keys whose processing fails
    side_outputs    rows that processors emit by name
    broadcasts      tables that every task sees in the same version
    connect         a session of Spark Connect: the client half, and the engine in the server
    migration       state from Spark's checkpoints and back
    spark_source    state, changes and checkpoints as frames and streams of Spark
    testing         `ProcessorTester`, and replays of recordings
"""
