"""
The verbs that change or repair a location.

    savepoints  tag, fork and copy
    rewind      rewind
    edit        edit, forget and unfreeze
    verify      verify, with --repair and --give-up-after
"""
