"""
What statelog is tested with, and what its users may test their jobs with.

A `World` runs the real storage, writers and schedulers from one seed: virtual clock, pool without
threads, a store with faults as values, a reference model and checkers for safety, liveness and
policy.  `python -m statelog.testing.world --seed N` replays one history.
"""
