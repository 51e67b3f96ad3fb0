"""
Write the rows of a micro-batch to a format, a table or a function.

    choose      the sink for a target, and what is checked before the first micro-batch
    file_sink   files, by Spark's streaming file sink: a batch that is delivered again is skipped
    tables      what the session's catalog knows about a table; creates a table of files
    simple      the target; Spark's batch writer for other formats, foreach, console, memory
    delta       Delta tables, by the same writer: a batch that is delivered again is skipped
    idempotent  a function for foreachBatch that skips a micro-batch it has written
    exactly_once_sink    a function for foreachBatch that writes each micro-batch once, to a sink that
                stores rows and the number of their micro-batch together; the protocol of such a sink

A sink for `exactly_once` is an extension; a new kind of writer is a module here and a branch in
`choose.sink_of`, which the writer imports for a query that writes to a format or table.
"""
