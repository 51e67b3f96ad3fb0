"""
Stateful streaming on Spark, with the state in statelog's changelog; requires PySpark.

A name is imported from its module at its first use: a worker of Spark runs tasks, and needs a part
of this only.
"""

from statelog.extras import require_spark
from statelog.first_use import public_names

require_spark("statelog.spark")

__getattr__, __dir__, __all__ = public_names(__name__)
