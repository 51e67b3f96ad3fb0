"""
Running aggregates by key and window: `aggregate(df.groupBy(...), count().alias("n"), ...)`.

Driver: `api` checks the call, `planning` makes of it what flows, what Spark computes of each
micro-batch, the state and the output.  Each micro-batch: `pre_aggregation` aggregates it in the JVM
and sends the partial results to the tasks.  Task: `processor` combines them with the state, by the
rules of each aggregate in `kinds`.
"""
