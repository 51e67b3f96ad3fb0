"""
`ProcessorTester`: tests or replays a processor without a Spark session.

    processor_tester   PySpark's TwsTester with real state, time to live, timers and restarts
    memory_job         runs and commits real tasks over a state location in memory; the state of its keys
    tester_rows        the input and the output of a task
    replay             what a recorded key saw, through a processor of today (find_processor)
"""

from statelog.extras import require_spark

require_spark("testing or replaying a processor")
