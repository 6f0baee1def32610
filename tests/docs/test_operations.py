"""The dashboard and alert rules of docs/operations name metrics of the listener; the compose file is valid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from promql_parser import Expr, VectorSelector

from streaming_source import AlignmentListener
from tests.docs.pages import ROOT

KIT = ROOT / "docs" / "operations"
# What Grafana puts in before it asks Prometheus.
VARIABLES = {"$query": ".*", "$source": ".*", "$__rate_interval": "1m"}


def exported() -> dict[str, set[str]]:
    """The labels of each series that a listener exports, by its name."""
    families = AlignmentListener().collect()
    names = {family.name + ("_total" if family.type == "counter" else ""): family for family in families}
    return {name: set(family._labelnames) for name, family in names.items()}  # type: ignore[attr-defined]


def dashboard() -> dict[str, Any]:
    path = KIT / "grafana" / "dashboards" / "event-time.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((KIT / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[Any]:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], target["legendFormat"], id=f"panel {panel['title']}")
    for rule in rules():
        yield pytest.param(rule["expr"], " ".join(rule["annotations"].values()), id=f"alert {rule['alert']}")


def selectors(expression: str) -> list[VectorSelector]:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    found: list[VectorSelector] = []

    def keep(expr: Expr) -> bool:
        if isinstance(expr, VectorSelector):
            found.append(expr)
        return True

    promql_parser.walk(promql_parser.parse(expression), keep)
    return found


@pytest.mark.parametrize(("expression", "text"), list(expressions()))
def test_an_expression_reads_metrics_and_labels_that_the_listener_exports(expression: str, text: str) -> None:
    known = exported()
    found = selectors(expression)
    assert found
    for selector in found:
        assert {matcher.name for matcher in selector.matchers.matchers} <= known[selector.name]
    shown = set(re.findall(r"\$labels\.(\w+)", text)) | set(re.findall(r"\{\{(\w+)\}\}", text))
    assert shown <= set.union(*(known[selector.name] for selector in found))


def test_each_metric_of_a_source_and_each_status_is_on_the_dashboard() -> None:
    shown = {
        selector.name
        for panel in dashboard()["panels"]
        for target in panel["targets"]
        for selector in selectors(target["expr"])
    }
    # A time and a position as such say nothing on a chart: the dashboard has the watermarks, which they end in.
    assert set(exported()) - shown == {"streaming_source_limit_timestamp_seconds", "streaming_source_split_position"}


def test_panels_do_not_overlap_and_have_a_title_and_a_description() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        assert panel["title"]
        assert panel["description"]
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & own
        cells |= own
    assert max(x for x, _ in cells) == 23


def test_the_alerts_fire_as_their_tests_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool: install Prometheus to run the tests of the alert rules")
    subprocess.run([promtool, "test", "rules", KIT / "alerts.test.yaml"], check=True, cwd=KIT)


def test_the_compose_file_is_one_and_names_files_that_are_there() -> None:
    check = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, KIT / "compose.yaml"], check=True, capture_output=True)
    services = yaml.safe_load((KIT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            place = volume.split(":")[0]
            assert not place.startswith(".") or (KIT / place).exists(), place
        if (build := service.get("build")) is not None:
            assert (KIT / build["context"] / build["dockerfile"]).exists()
            assert (KIT / service["command"][-1]).exists()
