"""
Rows that processors emit by name, next to their output.

    driver     the rows as attachments, and their delivery
"""
