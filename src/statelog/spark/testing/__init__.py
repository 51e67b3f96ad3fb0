"""
`ProcessorTester`: a processor in a unit test, without a Spark session.

    processor_tester   PySpark's TwsTester with real state, time to live, timers and restarts
    changelog          the log and the snapshots behind it, in memory
    ddl                Spark's DDL text as a schema, without the JVM
"""
