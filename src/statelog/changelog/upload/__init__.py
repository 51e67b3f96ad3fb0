"""
From change sets to durable files.

    scheduler   the protocol, and uploads in the caller's thread
    batching    many writers into few files, with back-pressure
    retrying    attempts, time-outs, the winner and the losers
    task        what a writer asks for, and what an uploader answers
    uploader    one file for many tasks; inline: small change sets inside the handle
"""
