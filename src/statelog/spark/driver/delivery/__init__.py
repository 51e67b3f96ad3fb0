"""
How the output rows of one micro-batch reach the sink, one module for each delivery.

    staged   rows travel in the acknowledgements, are committed with the state, then reach the sink
"""
