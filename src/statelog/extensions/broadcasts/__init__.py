"""
Broadcast tables; all tasks of a micro-batch read the same version.

    driver         the tables that a processor asks for, the versions that a micro-batch sees, their objects
    worker         the tables of a task, which keeps the newest versions
    stored         the versions that a checkpoint names
    commands       the verb broadcasts
"""
