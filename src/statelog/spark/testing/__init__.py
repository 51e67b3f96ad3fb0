"""
`ProcessorTester`: a processor in a unit test, without a Spark session.

    processor_tester   PySpark's TwsTester with real state, time to live, timers and restarts
    tester_handle      state and timers of one key, for a test; tester_rows: input and output
    tester_state       the keyed state; changelog: its log and snapshots, in memory
    ddl                Spark's DDL text as a schema, without the JVM
"""
