"""The real Flink, where the machine has its classes and a Java compiler."""

import os
from pathlib import Path

import pytest
from tests.flink.flink import Flink, NoJdk, compile_program

JAR_VARIABLE = "STATELOG_FLINK_JAR"


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Flink:
    named = os.environ.get(JAR_VARIABLE, "")
    if not named:
        pytest.skip(
            "needs Flink's own classes: run `make flink`, or set "
            f"{JAR_VARIABLE} to a flink-dist-2.3.0.jar"
        )
    jar = Path(named).absolute()
    assert jar.is_file(), f"{JAR_VARIABLE}={named}: there is no such file"
    try:
        return compile_program(jar, tmp_path_factory.mktemp("flink-program"))
    except NoJdk as error:
        pytest.skip(f"needs a JDK, a Java runtime alone does not do: {error}")
