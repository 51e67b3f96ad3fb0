"""
Record the input and state of selected keys, to replay them in a test or debugger.

    driver        which keys are recorded, and their recordings as attachments
    worker        the recorded run of a task, and the command that replays a key that failed
    recorder      what chosen keys see, within bounds, as bytes
    commands      the verb replay; replay_text: what it prints

Dead letters are recordings too, and broadcast tables are kept for them, so other extensions use:

    seen_keys   what single keys of a task see, in the form of a recording
    format      recordings of tasks as bytes, and back
    step        one key in one micro-batch: input, state before and after, calls, output
    location    the recordings of a location: list, find by key, remove a key

Recorded data is the data of the query: it is as personal as the rows and the state are.
Format: docs/reference/formats/state.md.
"""
