"""
Queries on Spark Connect: the parts in the client and in the server's worker.

The server runs the function of `foreachBatch` in a separate Python process, one for each query.
The engine of the driver runs there unchanged; the client makes the query and sends it, pickled.

    client          the functions of a Connect session, the stream that a user gets, its writer and its query
    recorded_steps  the input's plan, and the user's steps after the operator, which are applied in the worker
    sinks           write the rows of one micro-batch, in the worker
    query_files     the files of a checkpointLocation, read through Spark
    worker          runs the engine in the server's process for foreachBatch

`api` uses `client`, on first use, because this package needs the packages of Spark Connect.
"""
