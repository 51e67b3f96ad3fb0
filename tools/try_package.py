"""
Try the built wheel in an empty environment, as its users will meet it.

`try_package.py dist` installs the wheel in that folder into a new virtual environment, first without
extras and then with `spark` and `cli`, and runs it from another folder, with no path to the sources.
With `--archive` the environment is packed too, and a cluster of two executors runs from the archive
alone.  It needs pip, Java, and this project's mypy.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tools" / "user_program.py"
TOTALS = {f"c{n}": 2 * sum(range(n, 100, 5)) for n in range(5)}
NOT_TYPED = "import statelog as sl\n\nlast: str = sl.KeyGroupRange(0, 127)\n"
CLUSTER = "local-cluster[2,1,1024]"


class Trial:
    """
    One empty environment.

    Args:
        wheel: The wheel.
        folder: An empty folder.
    """

    def __init__(self, wheel: Path, folder: Path) -> None:
        self._wheel = wheel
        self._folder = folder
        self._bin = folder / "environment" / "bin"
        self._python = str(self._bin / "python")
        self._elsewhere = folder / "elsewhere"
        self._elsewhere.mkdir()
        # Nothing of the sources, and no interpreter but the new one.
        private = ("PYTHON", "PYSPARK_", "SPARK_", "VIRTUAL_ENV", "MYPYPATH")
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(private)
        }

    def without_extras(self) -> None:
        """Install the wheel alone: the changelog works, and what is missing is named."""
        say("without extras")
        run([sys.executable, "-m", "venv", str(self._folder / "environment")])
        self._install(str(self._wheel))
        self._check("import statelog; print(statelog.__file__)", "site-packages/statelog/__init__")
        code = "try:\n    import statelog.spark\nexcept ImportError as error:\n    print(error)"
        self._check(code, "pip install 'statelog[spark]'")
        for command in ([self._python, "-m", "statelog"], [str(self._bin / "statelog")]):
            done = self._run(*command, status=2)
            expect(done.stderr, "pip install 'statelog[cli]'")

    def with_extras(self) -> None:
        """Install the extras: a Spark query and the command line work."""
        say("with the extras spark and cli")
        self._install(f"{self._wheel}[spark,cli]")
        self._totals(self._run(self._python, "-I", str(self._program()), str(self._folder / "job")))
        for command in ([self._python, "-I", "-m", "statelog"], [str(self._bin / "statelog")]):
            for verb in ("checkpoints", "verify"):
                done = self._run(*command, verb, str(self._folder / "job" / "state"))
                expect(done.stdout, "2 checkpoints in" if verb == "checkpoints" else "")

    def first_screen(self) -> None:
        """Do what the first screen of the README says, and compare the state with what the job printed."""
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        readme = text.partition("## Use it if")[0]
        say("the first screen of the README")
        (extras,) = re.findall(r"^pip install '\.(\[[a-z,]+\])'", readme, re.MULTILINE)
        self._install(f"{self._wheel}{extras}")
        (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
        job = str(self._folder / "readme")
        script = self._elsewhere / "readme.py"
        script.write_text(program.replace("/tmp/statelog-readme", job))
        commands = re.findall(r"^\$ statelog (.*)$", readme, re.MULTILINE)
        totals: dict[str, float] = {}
        for _ in range(2):  # the second run continues the totals of the first
            before = dict(totals)
            printed = self._run(self._python, "-I", str(script)).stdout
            totals.update(
                (key, float(value))
                for key, value in re.findall(r"\|\s*(\d+)\|\s*([\d.]+)\|", printed)
            )
            if len(totals) != 7 or any(totals[key] <= before[key] for key in before):
                raise SystemExit(f"the totals do not go on: {before}, then {totals}")
            for command in commands:
                arguments = shlex.split(command.replace("/tmp/statelog-readme", job))
                said = self._run(str(self._bin / "statelog"), *arguments).stdout
                say(said)
            rows = re.findall(r"^ \d+ +(\d+) +([\d.]+) *$", said, re.MULTILINE)
            if {key: float(value) for key, value in rows} != totals:
                raise SystemExit(f"the state is not what the job printed last: {totals}")

    def types(self) -> None:
        """Check a program of a user by the types that the wheel has."""
        say("types")
        mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(self._folder / "mypy")]
        mypy += ["--python-executable", self._python, "--config-file="]  # an empty name: none
        done = self._run(*mypy, str(self._program()))
        expect(done.stdout, "no issues found")
        wrong = self._elsewhere / "wrong.py"
        wrong.write_text(NOT_TYPED)
        done = self._run(*mypy, str(wrong), status=1)
        expect(done.stdout, 'expression has type "KeyGroupRange", variable has type "str"')

    def archive(self) -> None:
        """Pack the environment, and run the program on executors that have the archive only."""
        say(f"the archive, on {CLUSTER}")
        self._install("venv-pack")
        archive = str(self._folder / "environment.tar.gz")
        # A virtual environment refers to its base interpreter, which each host must have.
        self._run(str(self._bin / "venv-pack"), "--prefix", str(self._bin.parent), "-o", archive)
        submit = [str(self._bin / "spark-submit"), "--master", CLUSTER]
        submit += ["--archives", f"{archive}#shipped", "--conf", "spark.ui.enabled=false"]
        submit += ["--conf", "spark.driver.bindAddress=127.0.0.1", str(self._program())]
        variables = {
            "PYSPARK_PYTHON": "./shipped/bin/python",
            "PYSPARK_DRIVER_PYTHON": self._python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        job = self._folder / "archive-job"
        packages = self._totals(self._run(*submit, str(job), variables=variables))
        if not all("/shipped/lib/" in one for one in packages):
            raise SystemExit(f"the executors did not use the archive: {packages}")

    def _program(self) -> Path:
        return Path(shutil.copy(PROGRAM, self._elsewhere))

    def _totals(self, done: "subprocess.CompletedProcess[str]") -> list[str]:
        line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
        said = json.loads(line)
        if (TOTALS, 2) != (said["totals"], said["batches"]):
            raise SystemExit(f"wrong totals: {line}")
        packages: list[str] = said["packages"]
        if any(str(ROOT / "src") in one for one in packages):
            raise SystemExit(f"the tasks used the sources: {packages}")
        say(f"  {said['batches']} micro-batches, exact; tasks used {', '.join(packages)}")
        return packages

    def _install(self, what: str) -> None:
        pip = [self._python, "-m", "pip", "-q", "--no-input", "--disable-pip-version-check"]
        run([*pip, "install", "-c", str(ROOT / "constraints.txt"), what], self._environment)

    def _check(self, code: str, wanted: str) -> None:
        expect(self._run(self._python, "-I", "-c", code).stdout, wanted)

    def _run(
        self, *command: str, status: int = 0, variables: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        environment = {**self._environment, **(variables or {})}
        done = subprocess.run(
            command,
            cwd=self._elsewhere,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode != status:
            shown = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
            raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{shown}")
        say(f"  {Path(command[0]).name} {' '.join(command[1:])[:100]!r}: status {status}")
        return done


def run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, env=None if environment is None else dict(environment))


def expect(text: str, wanted: str) -> None:
    """Stop the trial unless *wanted* is in *text*."""
    if wanted not in text:
        raise SystemExit(f"{wanted!r} is not in:\n{text}")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run all steps; the first that fails ends the trial."""
    parser = argparse.ArgumentParser(description="Try the built wheel in an empty environment.")
    parser.add_argument("dist", type=Path)
    parser.add_argument("--archive", action="store_true", help="also from an archive, on a cluster")
    arguments = parser.parse_args()
    wheels = sorted(arguments.dist.resolve().glob("statelog-*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"one wheel is expected in {arguments.dist}, not {wheels}")
    with tempfile.TemporaryDirectory(prefix="statelog-package-") as scratch:
        trial = Trial(wheels[0], Path(scratch))
        trial.without_extras()
        trial.with_extras()
        trial.first_screen()
        trial.types()
        if arguments.archive:
            trial.archive()
    say(f"{wheels[0].name} works in an empty environment")


if __name__ == "__main__":
    main()
