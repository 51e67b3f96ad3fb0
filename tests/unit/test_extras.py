"""A package that is missing is named, with the command that installs it."""

import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import statelog as sl
from statelog import extras
from statelog.errors import RequirementError

ROOT = Path(__file__).resolve().parents[2]
BLOCK = "import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"

USES = [
    ("pyspark", "import statelog.spark", "statelog.spark needs pyspark", "spark"),
    ("pyspark", "from statelog.testing import ProcessorTester",
     "testing or replaying a processor needs pyspark", "spark"),
    ("pandas", "import pyspark.sql; from statelog.spark.worker.processor_run import PANDAS\n"
     "PANDAS.row_format(None, None, False)", "a processor of pandas frames needs pandas", "spark"),
    ("prometheus_client", "import statelog; from statelog.exporters import PrometheusCollector\n"
     "PrometheusCollector(statelog.Metrics())", "this exporter needs prometheus-client", "metrics"),
    ("opentelemetry", "import statelog; from statelog.exporters import register_opentelemetry\n"
     "register_opentelemetry(statelog.Metrics())", "this exporter needs opentelemetry-sdk", "otel"),
    ("fsspec", "import statelog; statelog.open_store('hdfs://host/path')",
     "'hdfs://host/path' needs fsspec", "fsspec"),
    ("fsspec", "import statelog\n"
     "statelog.open_store('/tmp/nowhere', storage_options={'backend': 'fsspec'}).file_system",
     "'file:///tmp/nowhere' needs fsspec", "fsspec"),
    ("yaml", "from statelog.options import load_options; load_options(yaml_text='a: 1')",
     "the YAML text needs pyyaml", "cli"),
    ("pyiceberg", "from statelog.spark import IcebergSink", "IcebergSink needs pyiceberg", "iceberg"),
    ("confluent_kafka", "from statelog.spark import KafkaSink", "KafkaSink needs confluent-kafka", "kafka"),
    ("rich typer", "import statelog.cli.main", "the command line needs", "cli"),
]  # fmt: skip


def run(code: str, *blocked: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run *code* in an interpreter in which some modules cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=blocked) + code],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


@pytest.mark.parametrize(("blocked", "code", "said", "extra"), USES)
def test_a_missing_package_is_named(blocked: str, code: str, said: str, extra: str) -> None:
    indented = code.replace("\n", "\n    ")
    done = run(
        f"try:\n    {indented}\nexcept ImportError as error:\n    print(error)", *blocked.split()
    )
    assert "" == done.stderr
    assert said in done.stdout
    assert done.stdout.endswith(f"not installed: pip install 'statelog[{extra}]'\n")


@pytest.mark.parametrize("call", [["-m", "statelog"], ["-m", "statelog", "checkpoints", "x"]])
def test_the_command_without_its_packages_names_them_and_exits_with_2(call: list[str]) -> None:
    code = f"import runpy; sys.argv = {['statelog', *call[2:]]!r}\n"
    code += "runpy.run_module('statelog', run_name='__main__', alter_sys=True)"
    done = run(code, "typer", "rich")
    expected = "the command line needs typer, rich, which are not installed"
    assert (2, "") == (done.returncode, done.stdout)
    assert f"statelog: {expected}: pip install 'statelog[cli]'\n" == done.stderr


def test_the_demonstration_without_spark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code = "from statelog.cli.main import run; sys.exit(run(['demo']))"
    done = run(code, "pyspark", "pandas")
    assert 2 == done.returncode
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert "the demonstration needs pyspark, pandas, which are not installed: " in said
    assert "pip install 'statelog[spark]'" in said


def test_an_old_pyspark_is_named_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '3.4.1'\n")
    code = f"sys.path.insert(0, {str(tmp_path)!r})\nimport statelog.spark"
    done = run(code)
    assert 1 == done.returncode
    last = done.stderr.splitlines()[-1]
    assert "statelog.errors.RequirementError: statelog.spark needs PySpark 3.5 to 4." in last
    assert last.endswith(", but 3.4.1 is installed: pip install 'statelog[spark]'")


@pytest.mark.parametrize("version", ["3.5.9", "4.3.0", "4.3.1.dev0", "4.9.0", "5.0.0", "unknown"])
def test_newer_pysparks_are_accepted_too(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", pyspark_of(version))
    extras.require_spark("a test")


@pytest.mark.parametrize("version", ["3.4.9", "2.4.0", "3.1.9+vendor"])
def test_an_older_pyspark_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", pyspark_of(version))
    with pytest.raises(RequirementError, match=re.escape(f"{version} is installed")) as caught:
        extras.require_spark("a test")
    assert ("spark", ("pyspark",)) == (caught.value.extra, caught.value.packages)


def pyspark_of(version: str) -> types.ModuleType:
    module = types.ModuleType("pyspark")
    module.__spec__ = type(sys.__spec__)("pyspark", None)  # type: ignore[arg-type]
    module.__version__ = version  # type: ignore[attr-defined]
    return module


def test_the_error_is_one_of_statelog_and_an_import_error() -> None:
    error = extras.missing_error("a test", "cli", "yaml", "rich")
    assert isinstance(error, ImportError)
    assert isinstance(error, sl.UsageError)
    expected = "a test needs pyyaml, rich, which are not installed: pip install 'statelog[cli]'"
    assert expected == str(error)


def extras_of_the_project() -> dict[str, list[str]]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["optional-dependencies"]


def test_the_table_has_the_packages_that_the_extras_install() -> None:
    declared = extras_of_the_project()
    for extra, packages in extras.PACKAGES.items():
        names = {re.split(r"[^\w.-]", requirement)[0] for requirement in declared[extra]}
        assert names == set(packages.values()), extra
    assert {"dev", "docs"} == declared.keys() - extras.PACKAGES.keys()


def test_the_versions_of_spark_are_those_that_the_extra_admits() -> None:
    requirements = extras_of_the_project()["spark"]
    pin = next(requirement for requirement in requirements if requirement.startswith("pyspark"))
    (major, minor), *_, (last_major, last_minor) = extras.SPARK_VERSIONS
    assert f"pyspark>={major}.{minor},<{last_major}.{last_minor + 1}" == pin


def test_the_version_needs_no_packages_of_the_command_line() -> None:
    done = run(
        "sys.argv[1:] = ['--version']; from statelog.__main__ import main; main()", "rich", "typer"
    )
    assert (done.returncode, done.stdout) == (0, f"statelog {sl.__version__}\n"), done.stderr
