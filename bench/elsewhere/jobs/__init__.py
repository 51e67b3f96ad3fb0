"""
A program for each engine.

Each takes its input and tells its progress in the same way, by environment variables, so that it needs
nothing of this repository:

    ELSEWHERE_DATA      folder of the events, see `bench.elsewhere.events`
    ELSEWHERE_QUERY     totals or last_ten
    ELSEWHERE_MARKS     folder: each process appends lines "<seconds since 1970> <events so far>" to a file
    ELSEWHERE_ANSWERS   folder for the answers, or empty: lines "<key> <count> <sum>", or "<key> <values>";
                        of several lines of a key the one with the highest count, or the last one, is right
    ELSEWHERE_STATE     folder for state, checkpoints and change logs
"""
