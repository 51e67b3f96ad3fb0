"""
What chosen keys see, recorded for a replay in a test or a debugger.

    driver        which keys are recorded, and their recordings as attachments
    worker        the recording of a task: its run notes in a recorder what keys see
    recording     that as bytes
    replayable    the command that replays a key that failed
    commands      the verb replay; replay_text: what it prints
"""
