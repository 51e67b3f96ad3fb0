from statelog.extensions.spark_source.options import SourceOptions as SourceOptions
from statelog.extensions.spark_source.source import StateSource as StateSource
