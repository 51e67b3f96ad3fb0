"""
Publish the state of a location as an Iceberg or a Delta table.

    publisher  `statelog.publish`: which checkpoints are due, and which key groups changed
    table      what a publication needs of a table
    iceberg    a table in a catalog of pyiceberg
    delta      a table in a folder, by deltalake
    commands   the verb publish
"""
