"""
Columnar processors, which process all keys of a task at once without per-key objects.

    face            what the engine knows of them: the handle on the driver, and the run of a task
    processor       `ColumnarProcessor`
    rows            rows as one table, sorted by key
    slots/          state: each key has a slot, each variable a column
    aggregation/    `aggregate`: Spark aggregates each micro-batch, a columnar processor the results
    tester          tables in a `ProcessorTester`
"""
