"""
Features, each in one folder with all that it has; the engine does not name them.

A feature is imported at its first use, through a seam of the engine: a face through
`statelog.spark.query.faces`.  Extensions do not import each other.

    columns     processors of columns, their state in slots, and `aggregate`
"""
