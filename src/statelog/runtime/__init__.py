"""
Clocks, ids, timers, thread pools, locks, signals and forks.

All that depends on the process.
"""
