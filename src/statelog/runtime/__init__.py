"""
Clocks, ids, timers, pools, threads, locks, signals and forks.

All that depends on the process.
"""
