"""
One stateful query before it runs: everything that is decided once.

    settings             from session, code and writer to `QuerySettings`
    keyed_frame          `groupBy(...)` to a frame with key groups; input_plan, event_time, initial_state
    declared_state       the processor's `init`, run once, to the declared state variables
    operator_definition  all of it in one immutable object for the driver
    delivery, progress   the types that the driver and the user share
"""
