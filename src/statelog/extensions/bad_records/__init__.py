"""
Skip keys whose processing fails, store them as dead letters, or freeze them.

    policy          what the settings onError and maxErrors ask for
    marks           of keys that are frozen
    driver          what tasks do with them, their dead letters as attachments, and the warning
    worker          leaves out the calls that fail: runs the keys again, each with an overlay and an output
    dead_letters    what a replay of them needs
    stored          the dead letters that a checkpoint names, as a table
    commands        the verb dead-letters
"""
