"""
What chosen keys see, recorded for a replay in a test or a debugger.

    driver     which keys are recorded, and their recordings as attachments
"""
