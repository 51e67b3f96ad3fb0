"""
The verbs that change or repair a location; each calls an operation of `statelog.extensions.operations`.

    savepoints  tag, fork and copy
    rewind      rewind
    edit        edit, forget and unfreeze
    verify      verify, with --repair and --give-up-after
"""
