"""The Spark session of the job that `sink_kills` kills, and of the reader of its targets."""

from pathlib import Path

from pyspark.sql import SparkSession


def open_session(folder: Path, catalog: str) -> SparkSession:
    """
    Start Spark, with short logs so that they are compacted and cleaned all the time.

    Twice the interval of compaction is kept: with less, Spark's own log loses entries over restarts.
    """
    derby = f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.catalogImplementation": catalog,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.fileSink.log.cleanupDelay": "0",
        "spark.sql.streaming.fileSink.log.compactInterval": "3",
        "spark.sql.streaming.minBatchesToRetain": "6",
    }
    builder = SparkSession.builder.master("local[2]").appName("sinks")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
