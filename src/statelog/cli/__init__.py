"""
The frame of the command line: `statelog VERB ...`.

    main     the table of verbs, which are imported at their first use, and exit codes
    options  the arguments and options that several verbs have
    output   the console, tables, JSON, errors
    rows     rows of state and of tables

A verb is a function in the folder of its feature, next to what it runs.  The verbs of the core are
here: checkpoints, gc and audit in `checkpoints`; changelog.
"""

from statelog.extras import require

require("the command line", "cli", "typer", "rich")
