"""The wheel and the source distribution, as they are built for a release: what is in them, and what they need."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from trove_classifiers import classifiers

import streaming_source
from streaming_source.spark.datasource import FORMATS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def build(folder: Path) -> None:
    """Build both distributions as the release does, with the tools that are here."""
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--no-build-isolation", "--out-dir", folder, ROOT]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build(folder)
    return folder


def test_no_spark_of_a_cluster_is_replaced_and_who_has_none_gets_one_that_fits(pyproject: dict[str, Any]) -> None:
    def distributions(requirements: list[str]) -> dict[str, str]:
        return {re.split(r"[<>=~!\[; ]", text)[0]: text for text in requirements}

    project = pyproject["project"]
    assert set(distributions(project["dependencies"])) == {"pyarrow", "numpy", "sortedcontainers"}
    extras = project["optional-dependencies"]
    assert distributions(extras["pyspark"]) == {"pyspark": "pyspark>=4.0"}
    on_a_cluster = ("cli", "delta", "fsspec", "iceberg", "kafka", "kafka-schema", "metrics")
    assert all("pyspark" not in distributions(extras[name]) for name in on_a_cluster)
    # Nor does a library that one of them brings.
    installed = {dist.metadata["Name"].lower(): dist for dist in importlib.metadata.distributions()}
    needed, seen = [name for extra in on_a_cluster for name in distributions(extras[extra])], set[str]()
    while needed:
        name = needed.pop().lower()
        if name in seen or name not in installed:
            continue
        seen.add(name)
        needed += distributions([text for text in installed[name].requires or () if "extra ==" not in text])
    assert {"deltalake", "pyiceberg", "typer"} <= seen
    assert not {name for name in seen if "pyspark" in name}


def test_what_the_package_index_shows_is_valid_and_of_one_repository(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    assert [text for text in project["classifiers"] if text not in classifiers] == []
    site = yaml.safe_load(re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert project["urls"]["Repository"] == site["repo_url"]
    assert project["urls"]["Documentation"] == site["site_url"]
    assert all(url.startswith((site["repo_url"], site["site_url"])) for url in project["urls"].values())
    for rule in pyproject["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        place = site["repo_url"].removeprefix("https://github.com/")
        assert f"/{place}/" in rule["replacement"]


def test_on_a_package_index_pictures_and_links_lead_to_the_release(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        text = wheel.read(name).decode()
    assert not re.findall(r"\]\((?!https?://|#).*?\)", text)
    release = f"v{streaming_source.__version__}"
    assert f"{release}/docs/images/flights.png)" in text
    paths = re.findall(rf"/{release}/([^)#]+)", text)
    assert "docs/semantics.md" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.soak
def test_a_wheel_and_a_source_distribution_are_the_same_to_the_byte_when_built_again(
    built: Path, tmp_path: Path
) -> None:
    build(tmp_path)
    digests = [
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("spark*")}
        for folder in (built, tmp_path)
    ]
    assert len(digests[0]) == 2
    assert digests[0] == digests[1]


def test_the_wheel_has_the_packages_the_formats_the_license_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    top = {name.split("/")[0] for name in names}
    formats = {f"pyspark_{name}.py" for name in FORMATS}
    assert top == {
        "alignment",
        "streaming_source",
        f"spark_watermark_alignment-{streaming_source.__version__}.dist-info",
        *formats,
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)
    of_code = [name for name in names if "dist-info" not in name and "LICENSE" not in name]
    assert {Path(name).suffix for name in of_code} <= {".py", ".typed", ".js", ".css", ".html"}


@pytest.mark.soak
def test_tests_run_from_the_source_distribution(built: Path, tmp_path: Path) -> None:
    """Without Spark, and without the checkout: `PYTHONPATH` has the unpacked folder alone."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for name in ("Makefile", "noxfile.py", "mkdocs.yml", "docs/images/flights.png", "notebooks", "CONTRIBUTING.md"):
        assert (unpacked / name).exists(), name
    some = ["tests/project/test_docs.py", "tests/alignment/test_durations.py", "tests/spark/test_offsets.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *some]
    done = subprocess.run(
        command,
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
