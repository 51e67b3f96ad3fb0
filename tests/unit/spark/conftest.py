"""Tests of the engine need PySpark: without it none is collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["*"]
