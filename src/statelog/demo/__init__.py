"""
The demonstration: a streaming job that is killed, restarted and checked.

    process   the steps, and the input
    job       the streaming query; program: the process that runs it, and checks the result
    java      finds or makes a Java that Spark can run on
    commands  the verb demo
"""
