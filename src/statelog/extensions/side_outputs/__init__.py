"""
Side outputs: named streams of rows that processors emit besides their output.

    declaration    the side outputs that a processor declares
    driver         the rows as attachments, and their delivery
    worker         the rows that a task emits
    stored         the rows that a checkpoint names
    commands       the verb side-outputs
"""
