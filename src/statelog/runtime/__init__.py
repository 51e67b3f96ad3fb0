"""Clocks, ids, timers, pools, locks, signals and forks: all that depends on the process."""
