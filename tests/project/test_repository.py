"""What the repository's host reads is of the form that it expects: workflows and issue forms."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / ".github"
FORMS = {
    "vendor.github-workflows": sorted((HOST / "workflows").glob("*.yml")),
    "vendor.github-issue-forms": [HOST / "ISSUE_TEMPLATE" / "bug.yml", HOST / "ISSUE_TEMPLATE" / "feature.yml"],
    "vendor.github-issue-config": [HOST / "ISSUE_TEMPLATE" / "config.yml"],
}


@pytest.mark.parametrize("schema", FORMS)
def test_what_the_host_reads_is_of_its_form(schema: str) -> None:
    check = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", schema]
    done = subprocess.run([*check, *FORMS[schema]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_workflows_run_targets_of_the_makefile() -> None:
    targets = {
        line.split(":")[0] for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if ": " in line
    }
    steps = [
        step["run"]
        for path in FORMS["vendor.github-workflows"]
        for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    made = [run.split()[1] for run in steps if run.startswith("make ")]
    assert made
    assert set(made) <= targets
    assert {".ci/run", "make notebooks"} <= set(steps)


def test_workflows_name_the_actions_of_others_by_digest() -> None:
    """A tag can be moved to other code; the version beside the digest is for who reads it."""
    used = [
        line.split("uses:", 1)[1].strip()
        for path in FORMS["vendor.github-workflows"]
        for line in path.read_text(encoding="utf-8").splitlines()
        if "uses:" in line
    ]
    assert len(used) > 10
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


class _Session:
    """A session of nox in which nothing runs."""

    bin = "bin"

    def __init__(self, folder: Path, installed: list[str]) -> None:
        self._folder, self._installed, self.ran = folder, installed, []  # type: ignore[var-annotated]

    def install(self, *names: str, **_: object) -> None: ...

    def log(self, *_: object) -> None: ...

    def create_tmp(self) -> str:
        return str(self._folder)

    def error(self, text: str) -> None:
        raise RuntimeError(text)

    def run(self, *command: str, **_: object) -> str:
        self.ran.append(command)
        return "\n".join(self._installed)


def test_an_audit_fails_where_a_package_is_skipped_and_where_none_is_checked(tmp_path: Path) -> None:
    audit = importlib.import_module("noxfile").audit.func
    session = _Session(tmp_path, ["numpy==2.0", "spark-watermark-alignment==1.0"])
    audit(session)
    command = session.ran[-1]
    assert command[:2] == ("pip-audit", "--strict")
    assert "--local" not in command, "it would skip the project, and with it each run would fail"
    assert Path(command[-1]).read_text(encoding="utf-8") == "numpy==2.0"
    with pytest.raises(RuntimeError, match="nothing to check"):
        audit(_Session(tmp_path, []))


@pytest.mark.parametrize(
    ("repository", "tag", "refused"),
    [
        ("{place}", "v{version}", []),
        ("someone/a-fork", "v{version}", ["The URLs of the project are those of this repository"]),
        ("{place}", "v0.0.1", ["The tag is the version of the project", "The changelog has the version"]),
    ],
)
def test_a_release_is_refused_from_another_repository_than_its_urls_name_and_with_another_tag(
    repository: str, tag: str, refused: list[str]
) -> None:
    """Whoever moves the repository changes the URLs before anything is published."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    jobs = yaml.safe_load((HOST / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    host, _, place = project["urls"]["Repository"].rpartition("github.com/")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GITHUB_SERVER_URL": f"{host}github.com",
        "GITHUB_REPOSITORY": repository.format(place=place),
        "GITHUB_REF_NAME": tag.format(version=project["version"]),
    }
    steps = [step for step in jobs["build"]["steps"] if "run" in step]
    names = [step.get("name", "") for step in steps]
    checks = steps[: next(at for at, name in enumerate(names) if name.startswith("Build "))]
    failed = [
        step["name"]
        for step in checks
        if subprocess.run(["bash", "-ec", step["run"]], cwd=ROOT, env=environment, capture_output=True).returncode
    ]
    assert (len(checks), failed) == (3, refused)
    assert jobs["publish"]["needs"] == "build"
    publishing = [path.name for path in FORMS["vendor.github-workflows"] if "pypi" in path.read_text(encoding="utf-8")]
    assert publishing == ["release.yml"]


def test_each_door_of_the_threat_model_has_tests_that_exist() -> None:
    doors = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("## Every door")[2].partition("\n## ")[0]
    rows = [line for line in doors.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 15
    for row in rows:
        held = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert held, row
        missing = [
            (path, name) for path, name in held if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
        ]
        assert not missing, "name the test as it is called now"
