"""
Keys whose processing fails: left out, kept as dead letters, or frozen.

    driver     what tasks do with them, their dead letters as attachments, and the warning
"""
