"""The import rule of the packages: who may know of whom, held over every import, lazy ones too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.project.public_api import MODULES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("alignment", "streaming_source")
TOOLS = "streaming_source.tools"
SIMULATION = "alignment.simulation"
ON_SPARK = ("cli", "advise", "listener")
NAMES_OF_TOOLS = ("streaming_source.auditing", "streaming_source.testing")


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name, and whether it is a package's ``__init__``."""

    name: str
    is_package: bool
    source: str


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, absolute; ``lazy`` inside a function, ``typing_only`` under ``if TYPE_CHECKING``."""

    target: str
    line: int
    lazy: bool
    typing_only: bool


@cache
def parsed(source: str) -> ast.Module:
    """Return the tree of a module, which nobody changes: the house looks through all of them a dozen times."""
    return ast.parse(source)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a module, as `ast.walk` goes."""
    return tuple(ast.walk(parsed(source)))


def modules(root: Path) -> list[Module]:
    """Return every module of the two packages below ``root``."""
    found = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found.append(Module(name, is_package, path.read_text(encoding="utf-8")))
    return found


def imports_of(module: Module) -> list[Import]:
    """Return every import of a module, those through ``import_module("...")`` and ``__import__`` too."""
    return list(_walk(parsed(module.source), module, lazy=False, typing_only=False))


def _walk(node: ast.AST, module: Module, *, lazy: bool, typing_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, lazy, typing_only)
    elif isinstance(node, ast.ImportFrom):
        base = _absolute(node, module)
        for alias in node.names:
            # The name itself is kept: `from streaming_source import spark` imports streaming_source.spark.
            yield Import(f"{base}.{alias.name}", node.lineno, lazy, typing_only)
    elif isinstance(node, ast.Call) and (target := _dynamic_target(node)):
        yield Import(target, node.lineno, lazy, typing_only)
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        for statement in node.body:
            yield from _walk(statement, module, lazy=lazy, typing_only=True)
        for statement in node.orelse:
            yield from _walk(statement, module, lazy=lazy, typing_only=typing_only)
        return
    inner_lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, module, lazy=inner_lazy, typing_only=typing_only)


def _absolute(node: ast.ImportFrom, module: Module) -> str:
    if node.level == 0:
        return node.module or ""
    up = node.level - 1 if module.is_package else node.level
    parts = module.name.split(".")
    base = parts[: len(parts) - up]
    return ".".join([*base, *([node.module] if node.module else [])])


def _dynamic_target(node: ast.Call) -> str | None:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    if called not in ("import_module", "__import__") or not node.args:
        return None
    first = node.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def within(name: str, *packages: str) -> bool:
    """Return whether ``name`` is one of the packages or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def connector_of(name: str) -> str | None:
    """Return the dotted name of the connector a module belongs to, if it belongs to one."""
    parts = name.split(".")
    return ".".join(parts[:3]) if parts[:2] == ["streaming_source", "connectors"] and len(parts) > 2 else None


def is_allowed(module: Module, found: Import) -> bool:
    """Return whether the import rule lets the module import this."""
    target = found.target
    may_use_spark = within(module.name, "streaming_source.spark", *(f"{TOOLS}.{name}" for name in ON_SPARK))
    if within(target, SIMULATION) and not within(module.name, SIMULATION, TOOLS):
        return False
    if within(target, TOOLS) and not within(module.name, TOOLS, *NAMES_OF_TOOLS):
        # The library does not load what stands around it.
        return module.name == "streaming_source" and (found.lazy or found.typing_only)
    if within(target, "pyspark") and not may_use_spark:
        return module.name == "streaming_source" and (found.lazy or found.typing_only)
    if within(target, *sys.stdlib_module_names):
        return True
    if within(target, "streaming_source.from_data") and not within(module.name, "alignment"):
        # Whoever opens what data name checks it: every package of streaming_source does.
        return True
    if within(module.name, "alignment"):
        return within(target, "alignment", "numpy", "pyarrow", "sortedcontainers")
    if within(module.name, "streaming_source.api"):
        return within(target, "alignment", "numpy", "pyarrow", "streaming_source.api", "streaming_source.exceptions")
    if within(module.name, "streaming_source.data_files"):
        # How a file is read does not know how it was found: no connector.
        own = ("streaming_source.api", "streaming_source.data_files", "streaming_source.exceptions")
        return within(target, "alignment", "numpy", "pyarrow", *own) or target.split(".")[0] == "fsspec"
    if within(module.name, "streaming_source.gateway"):
        own = ("streaming_source.api", "streaming_source.exceptions", "streaming_source.gateway")
        return within(target, "alignment", *own)
    if within(module.name, "streaming_source.checkpoint"):
        # What a checkpoint says is known without a source: who needs that of a connector has it parse what is there.
        return within(target, "alignment", "pyarrow", "streaming_source.checkpoint", "streaming_source.exceptions")
    if within(module.name, "streaming_source.monitoring"):
        own = ("streaming_source.checkpoint", "streaming_source.exceptions", "streaming_source.monitoring")
        return within(target, "alignment", "numpy", "prometheus_client", "pyarrow", *own)
    if within(module.name, f"{TOOLS}.auditing"):
        own = (f"{TOOLS}.auditing", f"{TOOLS}.pages", "streaming_source.exceptions", "streaming_source.monitoring")
        known = ("alignment", *(f"streaming_source.{name}" for name in ("api", "checkpoint", "connectors")))
        return within(target, "streaming_source.data_files", *known, *own) or not within(target, *PACKAGES)
    if connector := connector_of(module.name):
        shared = ("alignment", "streaming_source.api", "streaming_source.data_files", "streaming_source.exceptions")
        # The watermark of what a query of Spark has written is in that query's checkpoint.
        shared += ("streaming_source.checkpoint", "streaming_source.connectors.claims")
        # What all formats of tables share is no connector by itself.
        own = (*shared, "streaming_source.connectors.tables", connector)
        return within(target, *own) or not within(target, *PACKAGES)
    if module.name == "streaming_source.connectors":
        return within(target, "streaming_source.connectors")
    if module.name == "streaming_source" and within(target, "streaming_source.spark"):
        return found.lazy or found.typing_only
    return True


def violations(module: Module) -> list[str]:
    """Return one line for each import of the module that the rule forbids."""
    return [
        f"{module.name}:{found.line} may not import {found.target}" + (" (lazily)" if found.lazy else "")
        for found in imports_of(module)
        if not is_allowed(module, found)
    ]


def defines_all(module: Module) -> bool:
    """Return whether the module assigns ``__all__`` at its top level."""
    for node in parsed(module.source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return True
    return False


def test_there_are_modules_to_check() -> None:
    names = {module.name for module in modules(ROOT)}
    assert names >= set(PACKAGES)


def test_every_import_follows_the_rule() -> None:
    found = [line for module in modules(ROOT) for line in violations(module)]
    assert not found, "\n".join(found)


def test_every_module_has_a_docstring() -> None:
    missing = [module.name for module in modules(ROOT) if not ast.get_docstring(parsed(module.source))]
    assert not missing, f"modules without a docstring: {missing}"


def test_the_modules_that_users_import_and_no_others_say_what_they_export() -> None:
    exporting = {module.name for module in modules(ROOT) if defines_all(module) and not module.is_package}
    packages = {module.name for module in modules(ROOT) if module.is_package}
    # It hands on names of PySpark.
    assert exporting == {*MODULES, "streaming_source.spark.before_4_2"} - packages
    assert {*MODULES} & packages <= {module.name for module in modules(ROOT) if defines_all(module)}


@pytest.mark.parametrize(
    "name", ["alignment", "streaming_source.api", "streaming_source.data_files", "streaming_source.gateway"]
)
def test_importing_a_spark_free_package_does_not_load_pyspark(name: str) -> None:
    if not (ROOT / Path(*name.split(".")) / "__init__.py").exists():
        pytest.fail(f"{name} has no __init__.py")
    code = f"import sys, {name}; sys.exit('pyspark was loaded' if 'pyspark' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("alignment.groups", "import pyspark"),
        ("alignment.groups", "import pandas"),
        ("alignment.groups", "import os, pyspark.sql"),
        ("alignment.groups", "def f():\n    from streaming_source.api import Source"),
        ("alignment.groups", "import importlib\nimportlib.import_module('pyspark.sql')"),
        ("alignment.groups", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyspark"),
        ("streaming_source.api.source", "from streaming_source import spark"),
        ("streaming_source.api.source", "from ..spark import offset"),
        ("streaming_source.api.source", "def f():\n    import streaming_source.spark"),
        ("streaming_source.api.source", "from streaming_source.reader import SourceReaderBase"),
        ("streaming_source.api.source", "def f():\n    from streaming_source.reader import SourceReaderBase"),
        ("streaming_source.api.split", "import pandas"),
        (
            "streaming_source.connectors.files.reader",
            "from streaming_source.connectors.kafka import KafkaSource",
        ),
        ("streaming_source.connectors.files.reader", "from ..kafka import KafkaSource"),
        ("streaming_source.connectors.files.reader", "import streaming_source.reader"),
        (
            "streaming_source.connectors.files.reader",
            "try:\n    import pyspark\nexcept ImportError:\n    pass",
        ),
        ("streaming_source.data_files.file", "from streaming_source.connectors.files.listing import ListedFile"),
        ("streaming_source.data_files.ranges", "def f():\n    import streaming_source.connectors.files"),
        ("streaming_source.data_files.split_reader", "from ..connectors.files.config import FilesConfig"),
        ("streaming_source.data_files.split_reader", "from streaming_source.reader import SourceReaderBase"),
        ("streaming_source.api.split", "from streaming_source.data_files.file import DataFile"),
        ("streaming_source.reader.base", "async def f():\n    import pyspark"),
        ("streaming_source.gateway.server", "import pyspark"),
        ("streaming_source.gateway.server", "from streaming_source.coordinator import EnumeratorHost"),
        ("streaming_source.gateway.server", "def f():\n    import streaming_source.spark"),
        ("streaming_source.gateway.server", "import pyarrow.flight"),
        ("streaming_source.api.serializer", "from streaming_source.gateway import GatewayAddress"),
        ("streaming_source.tools.auditing.query", "from streaming_source.spark.delay import advise_on"),
        ("streaming_source.checkpoint.operators", "from streaming_source.tools.auditing.rule import Rule"),
        ("streaming_source.checkpoint.source_offsets", "from streaming_source.connectors.kafka import KafkaSource"),
        ("streaming_source.tools.auditing.sources.delta", "import pyspark"),
        ("streaming_source.spark.frames", "def f():\n    from streaming_source.tools.advise import advise"),
        ("streaming_source.monitoring.history", "from streaming_source.tools.pages import html_page"),
        ("streaming_source", "from streaming_source.tools.auditing.query import audit"),
        ("alignment.engine", "from alignment.simulation import RecordedWorkload"),
        ("streaming_source", "from pyspark.sql import DataFrame"),
        ("streaming_source", "from streaming_source.spark import register"),
    ],
)
def test_a_planted_violation_is_caught(name: str, source: str) -> None:
    assert violations(Module(name, name == "streaming_source", source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("alignment.groups", "import math\nimport numpy as np\nfrom sortedcontainers import SortedList"),
        ("alignment.groups", "from . import durations\nfrom .timestamps import NO_TIMESTAMP"),
        ("streaming_source.api.source", "import pyarrow as pa\nfrom alignment import WatermarkStrategy"),
        (
            "streaming_source.connectors.kafka.reader",
            "import confluent_kafka\nfrom .splits import KafkaSplit",
        ),
        ("streaming_source.connectors.kafka.reader", "from streaming_source.exceptions import SourceError"),
        ("streaming_source.connectors.delta.source", "from streaming_source.data_files.file import DataFile"),
        ("streaming_source.data_files.ranges", "import numpy as np\nfrom streaming_source.api import SourceSplit"),
        ("streaming_source.gateway.server", "import ssl\nfrom alignment.events import RangeReport"),
        ("streaming_source.spark.reader", "from streaming_source.gateway import GatewayServer"),
        ("streaming_source.spark.reader", "from pyspark.sql.datasource import DataSource"),
        ("streaming_source.tools.auditing.sources.files", "from streaming_source.data_files.file import DataFile"),
        ("streaming_source.tools.cli.demo", "from pyspark.sql import SparkSession"),
        ("streaming_source", "def register():\n    from streaming_source.spark import register"),
        ("streaming_source", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyspark"),
    ],
)
def test_an_allowed_import_is_let_through(name: str, source: str) -> None:
    assert violations(Module(name, name == "streaming_source", source)) == []
