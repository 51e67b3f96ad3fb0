"""
Uploads: how change sets become durable files.

    scheduler   the protocol, and uploads in the caller's thread
    batching    many writers into few files, with back-pressure
    retrying    attempts, time-outs, the winner and the losers
    task        upload tasks of writers, and results of uploaders
    uploader    one file for many tasks; its parts from options
"""
