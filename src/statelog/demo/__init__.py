"""
The demonstration: a streaming job, killed, restarted and checked.

    run       the steps, and the input
    job       the streaming query; program: the process that runs it, and checks the result
    process   starts and kills that process and its children
    java      finds or makes a Java that Spark can run on
    commands  the verb demo
"""
