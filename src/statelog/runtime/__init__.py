"""The outside world in one room: clocks, timers, pools, locks, and the Java that Spark needs."""
