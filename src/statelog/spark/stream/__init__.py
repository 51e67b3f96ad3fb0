"""
The result of `transform_with_state`: a stream that records the steps applied to it.

    stateful_stream   the DataFrame methods: recorded, answered, or rejected with the reason
    recorded_plan     the recorded steps, applied to each micro-batch
    writer            Spark's DataStreamWriter; `start` resolves the settings and starts the query
    sinks             write the rows of one micro-batch to a format, a table or a function
    stateful_query    the StreamingQuery that `start` returns, and a temporary folder for it
    query_progress    what statelog adds to `lastProgress` of that query: figures, and metrics of `observe`

`api` uses `recorded_plan` and `stateful_stream`.
"""
