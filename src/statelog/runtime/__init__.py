"""Clocks, ids, timers, pools, threads, locks, signals and forks: all that depends on the process."""
