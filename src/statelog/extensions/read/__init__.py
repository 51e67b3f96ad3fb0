"""
Ways to read a location besides the tables of a checkpoint.

    location_state  `statelog.open`: everything below, by one object; the history of a key
    changes         which keys differ between two checkpoints, by joining in columns; what each
                    checkpoint changed, from its log: window
    replica         `follow`: a copy in memory that follows the query; held_state
    sql             SQL over the variables, through DuckDB
    parquet_files   the variables as Parquet files
    commands        the verbs read, get, diff and sql
"""
