"""
What a user holds after `transform_with_state`: a stream that records the plan behind it.

    stateful_stream   the DataFrame methods: recorded, answered, or rejected with the reason
    recorded_plan     the recorded steps, applied to each micro-batch
    writer            Spark's DataStreamWriter; `start` settles the query and returns a StreamingQuery
    sinks             how the rows of one micro-batch reach a format, a table or a function
"""
