"""
Sinks for `exactly_once`; each sink stores rows with a record of their micro-batch.

    database    one transaction of a database
    iceberg     one commit of a table; the extra `iceberg`
    kafka       one transaction of a producer; the extra `kafka`

The protocol of such a sink is in `statelog.spark.stream.sinks.exactly_once_sink`.
"""
