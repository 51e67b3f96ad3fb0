"""
`ProcessorTester`: a processor in a unit test, without a Spark session; and replays in it.

    processor_tester   PySpark's TwsTester with real state, time to live, timers and restarts
    tester_state       the keyed state, with its log and snapshots in memory, and the handle of one key
    tester_rows        input and output
    key_state          the state of one key as a test writes it
    replay             what a recorded key saw, through a processor of today (find_processor);
                       replay_tester runs a step
"""

from statelog.extras import require_spark

require_spark("a test or a replay of a processor")
