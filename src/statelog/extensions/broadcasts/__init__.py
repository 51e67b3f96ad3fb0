"""
Tables that every task of a micro-batch sees in the same version.

    driver     the versions that a micro-batch sees, and their objects as attachments
"""
