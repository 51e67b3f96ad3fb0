"""
The demonstration: a streaming job, killed, restarted and checked.

    data      the input; job: the streaming query; program: the process that runs it
    process   starts and kills that process and its children; run: the demonstration
    check     compares state and output with a batch query
    java      finds or makes a Java that Spark can run on
"""
