"""
What all benchmarks share: results as JSON, runs of queries, and the page made of them.

A benchmark measures its *parts* in turns and adds each run to a `results.Results`, which writes one
JSON file.  `query_run` runs a streaming query for a bounded time.  `figures` makes medians, spreads and
ratios of the runs, `plots` and `blocks` draw them, `page` writes them between the markers of
docs/benchmarks.md, and `check` compares the ratios with those of the last page.
"""
