"""What the repository's host reads is of the form that it expects: workflows and issue forms."""

from __future__ import annotations

import subprocess
import sys
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
    assert ".ci/run" in steps
