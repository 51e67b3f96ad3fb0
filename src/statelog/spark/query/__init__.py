"""
Everything about a stateful query that is decided once, before it runs.

    keyed_frame          from `groupBy(...)` to a frame with key groups; input_plan, event_time, initial_state
    declared_state       from the processor's `init`, run once, to the declared state variables
    missing_yield        a warning of methods that can never output a row
    operator_definition  the operator as its call defines it
    settings             the declarations of all settings, each made by `setting`
    record               which keys are recorded; operator_settings: the settings as arguments
    resolve              from session, code and writer to `QuerySettings`
    query                operators, settings and location in one immutable object for the driver

`delivery`, `modes` and `progress` hold the types that the driver and the user share.
"""
