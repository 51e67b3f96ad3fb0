"""
The engines that a Python user could pick instead, over the same events on the same machine.

    events    the events, and the answers that each engine is compared with before a time counts
    jobs      one program for each engine; it runs in a separate environment, without statelog
    watch     runs such a program, and measures its processes
    run       makes the environments, checks, measures, writes `bench/results/elsewhere.json`

Two queries.  `totals`: count and sum for each key.  `last_ten`: the last ten values of each key.  Both emit a
result for each event, or for each key and micro-batch, as the engine does it.
"""
