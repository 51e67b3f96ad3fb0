"""
The decisions about a stateful query that are made once, before it runs.

    session              what differs between a classic session and one of Spark Connect
    face                 the forms in which processors get rows and state
    input_plan           from `groupBy(...)` to rows with keys: keyed_frame, input_columns
    processor_checks     a copy of the processor as a worker gets it, and a warning of a missing `yield`
    declared_state       from the processor's `init`, run once, to the declared state variables, and what it declares to extensions
    ddl                  Spark's DDL text as a schema, without the JVM
    settings             the declarations of all settings, by field; as arguments too
    record               what is recorded of keys
    resolve              from session, code and writer to `QuerySettings`
    query                operators, settings and location in one immutable object for the driver

`delivery` and `progress` hold the types that the driver and the user share.
"""
