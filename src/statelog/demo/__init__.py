"""
The demonstration: a streaming job on real orders, killed, restarted on other tasks, and checked.

    data      orders to work on; job: the streaming query; program: it as a process
    process   starts and kills that process; run: the plan of the demonstration
    check     compares state and output with a batch answer
    java      a Java that Spark can run on
"""
