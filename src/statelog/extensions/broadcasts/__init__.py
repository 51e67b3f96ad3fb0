"""
Tables that every task of a micro-batch sees in the same version.

    declaration    the tables that a processor asks for
    driver         the versions that a micro-batch sees, and their objects as attachments
    worker         the tables of a task, which keeps the newest versions
    stored         the versions that a checkpoint names
    commands       the verb broadcasts
"""
