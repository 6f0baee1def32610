"""What is installed is what the project says: one version, typed packages, nothing else in the wheel."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle

import streaming_source
from streaming_source.spark.datasource import FORMATS
from streaming_source.spark.format_class import format_class

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = "spark-watermark-alignment"


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def installed_version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        pytest.fail(f"{DISTRIBUTION} is not installed in this environment; run `make setup`")


def test_the_package_states_the_version_of_the_project(pyproject: dict[str, Any]) -> None:
    assert streaming_source.__version__ == pyproject["project"]["version"]


def test_the_changelog_has_the_version_of_the_project(pyproject: dict[str, Any]) -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
    assert f"## [{pyproject['project']['version']}]" in headings


def test_the_installed_metadata_has_the_version_of_the_project(pyproject: dict[str, Any]) -> None:
    assert installed_version() == pyproject["project"]["version"]


def test_the_wheel_holds_both_packages_and_their_type_markers(pyproject: dict[str, Any]) -> None:
    target = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert target["packages"] == ["alignment", "streaming_source"]
    for package in target["packages"]:
        marker = ROOT / package / "py.typed"
        assert marker.is_file()
        patterns = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
        # Hatchling leaves out of the wheel what git ignores.
        assert not any(marker.match(p) for p in patterns if p and not p.startswith("#"))
        assert not set(target) & {"exclude", "only-include"}


def test_each_format_is_a_module_where_spark_looks_in_a_wheel_and_in_a_checkout(pyproject: dict[str, Any]) -> None:
    target = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    ((place, installed_as),) = target["sources"].items()
    assert installed_as == ""
    assert target["dev-mode-dirs"] == [".", place]
    assert {file.stem for file in (ROOT / place).glob("*.py")} == {f"pyspark_{name}" for name in FORMATS}


def test_a_worker_without_the_library_names_its_python_and_the_fix(tmp_path: Path) -> None:
    # As bare as it comes: a worker finds PySpark, which Spark brings along, and is sent the class of the format.
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python, brought = tmp_path / "bare" / "bin" / "python", Path(pyspark.__file__).parent / "python" / "lib"
    program = "import sys; from pyspark import cloudpickle; cloudpickle.loads(sys.stdin.buffer.read())({})"
    worker = subprocess.run(
        [python, "-W", "ignore", "-c", program],
        input=cloudpickle.dumps(format_class("aligned_files", None, sys.executable)),  # type: ignore[no-untyped-call]
        env={"PYTHONPATH": os.pathsep.join(map(str, brought.glob("*.zip")))},
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    message = " ".join(worker.stderr.decode().split())
    assert f"Spark's workers run {python} (Python 3." in message
    assert f"no module 'streaming_source'; the driver runs {sys.executable}. Install spark-watermark-align" in message
    assert "set PYSPARK_PYTHON" in message


def test_the_script_points_into_the_package(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["scripts"] == {"streaming-source": "streaming_source.tools.cli:main"}


def test_make_versions_runs_each_python_that_is_named_and_the_first_pyspark(pyproject: dict[str, Any]) -> None:
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    pairs = re.findall(r'\("(3\.\d+)", "(\d+\.\d+\.\d+)"\)', source)
    named = [text.rpartition(" ")[2] for text in pyproject["project"]["classifiers"] if ":: 3." in text]
    assert sorted({python for python, _ in pairs}, key=lambda python: int(python[2:])) == named
    assert min(pyspark for _, pyspark in pairs) == "4.0.2"
    rows = re.findall(
        r"^\| (3\.\d+) \| (4\..*?) \|$", (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8"), re.M
    )
    assert [(python, pyspark) for python, all_of_it in rows for pyspark in all_of_it.split(", ")] == pairs


def test_another_project_named_alignment_is_named_with_its_folder_and_the_fix(tmp_path: Path) -> None:
    """As PyPI has one, which installs a folder of the same name."""
    (tmp_path / "alignment").mkdir()
    (tmp_path / "alignment" / "__init__.py").write_text("", encoding="utf-8")
    # The folder in which a program runs goes before all else.
    command = [sys.executable, "-c", "from streaming_source import WatermarkStrategy"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    *_, what, fix = done.stderr.splitlines()
    assert f"the 'alignment' in {tmp_path / 'alignment' / '__init__.py'} is not that of spark-watermark" in what
    assert "uninstall the project 'alignment'" in fix


def test_without_pyspark_an_import_names_what_to_install_and_the_rest_works() -> None:
    without = "import sys; sys.modules['pyspark'] = None"
    works = "from streaming_source import FileSource, WatermarkStrategy, audit, explain"
    program = f"{without}; {works}; from streaming_source import read_stream"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    *_, what, fix = done.stderr.splitlines()
    assert f"streaming_source.read_stream needs PySpark 4.0 or later, which {sys.executable} does not have." in what
    assert fix.endswith("elsewhere install spark-watermark-alignment[pyspark]")


def test_without_pyspark_the_command_that_needs_it_names_the_extra(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from streaming_source.tools.cli import main; main()"
    command = [sys.executable, "-c", program, "advise", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: advise needs PySpark: pip install 'spark-watermark-alignment[cli,pyspark]'\n"


def test_on_a_pyspark_without_data_sources_the_import_names_the_version_that_is_needed() -> None:
    # As in 3.5, which has no such module.
    without = "import sys; sys.modules['pyspark.sql.datasource'] = None"
    program = f"{without}; from streaming_source import register"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "install pyspark>=4.0" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_type_checker_knows_the_public_names_and_refuses_others(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="types are checked where the dev tools are, beside no other PySpark")
    if not (ROOT / ".mypy_cache").is_dir():
        pytest.skip("it would check the types of all of the library: make check does so before the tests")
    (tmp_path / "program.py").write_text(
        "from streaming_source import KafkaSource, explain, read_stream\n"
        "from streaming_source.connectors import FileSource\n"
        "from streaming_source import read_straem\n"
        "from streaming_source.connectors import FileSuorce\n"
    )
    # By the settings and the cache of the project, which are strict: it takes a second behind `make lint`.
    command = [sys.executable, "-m", "mypy", "--no-pretty", str(tmp_path / "program.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    refused = re.findall(r"program\.py:(\d): error: Module \S+ has no attribute \"(\w+)\"", done.stdout)
    assert refused == [("3", "read_straem"), ("4", "FileSuorce")], done.stdout
    assert "Found 2 errors" in done.stdout
