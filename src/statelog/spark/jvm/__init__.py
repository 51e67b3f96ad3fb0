"""
All access to Spark's JVM, through py4j.

    gateway          the JVM itself, its classes, a session's settings
    tricks           the switches `spark.statelog.jvm.<trick>`, and the log of what is not used
    frames           a frame's grouping, plan, size and columns
    queries          running queries, and the parts of Spark's writer
    no_data_source   a streaming source without rows
    files, sinks     Hadoop's files; Spark's sink of files, and tables
    python_job       the frames of Python jobs, with few calls, and a worker for each task; copies of physical plans

Only `python_job`, and the size and Arrow data in `frames`, are optional.  The others are asked for
what neither a file nor a public method of PySpark has.
"""
