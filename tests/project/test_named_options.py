"""No text names an option that the same reader refuses: all texts of a package, by the options of its formats."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from streaming_source.api import OptionSet
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, STRATEGY_OPTIONS

ROOT = Path(__file__).parents[2] / "streaming_source"

FORMATS: Mapping[str, OptionSet] = {
    "files": FileSource.options(),
    "delta": DeltaSource.options(),
    "iceberg": IcebergSource.options(),
    "kafka": KAFKA_OPTIONS,
    "datagen": DataGeneratorSource.options(),
}

READERS = {
    "data_files/formats/columnar.py": ("files", "delta", "iceberg"),
    # Of text alone, which no table has.
    "data_files/formats": ("files",),
    "data_files": ("files", "delta", "iceberg"),
    "connectors/tables": ("delta", "iceberg"),
    **{f"connectors/{name}": (name,) for name in FORMATS},
}
"""By the path of a module, or of a package that it is in: the formats whose users may meet its texts."""

OF_FILES = "_OF_FILES"
"""How a constant is named that has texts for files alone, where tables are read too."""


def names_of(options: OptionSet) -> set[str]:
    """The names that can be told from other words: with a capital letter inside, or a hyphen."""
    return {option.name for option in options if re.search(r"[a-z][A-Z]|-", option.name.removesuffix(".*"))}


COMMON = names_of(STRATEGY_OPTIONS) | names_of(FRAME_OPTIONS) | names_of(SOURCE_OPTIONS)
KNOWN = {name: names_of(options) | COMMON for name, options in FORMATS.items()}
WORDS = "|".join(map(re.escape, sorted(set().union(*KNOWN.values()))))
WORD = re.compile(rf"(?<![\w.-])({WORDS})(?![\w-])")


def texts_in(tree: ast.AST, formats: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The texts in a module but for docstrings, annotations, and names that are refused: what it says, and to whom."""
    if isinstance(tree, ast.AnnAssign | ast.Assign):
        names = [tree.target] if isinstance(tree, ast.AnnAssign) else tree.targets
        if any(isinstance(name, ast.Name) and name.id.endswith(OF_FILES) for name in names):
            formats = ("files",)
        if tree.value is not None:
            yield from texts_in(tree.value, formats)
        return
    if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant):
        return
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str) and " " in tree.value:
        yield tree.value, formats
    for name, field in ast.iter_fields(tree):
        if isinstance(tree, ast.Dict) and name == "keys":
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield from texts_in(child, formats)


def refused_names(path: Path, formats: tuple[str, ...]) -> list[str]:
    found = texts_in(ast.parse(path.read_text()), formats)
    return [
        f"{path.relative_to(ROOT)}: {word} is no option of {name}: {text.strip()}"
        for text, of in found
        for word in WORD.findall(text)
        for name in of
        if word not in KNOWN[name]
    ]


@pytest.mark.parametrize("where", READERS)
def test_no_text_names_an_option_that_the_same_reader_refuses(where: str) -> None:
    modules = [ROOT / where] if where.endswith(".py") else sorted((ROOT / where).rglob("*.py"))
    others = [ROOT / other for other in READERS if other != where and other.startswith(where)]
    mine = [path for path in modules if not any(path == other or other in path.parents for other in others)]
    assert mine

    assert [line for path in mine for line in refused_names(path, READERS[where])] == []


def test_a_text_with_such_a_name_is_found(tmp_path: Path) -> None:
    text = 'def f():\n    """dataSchema is not said."""\n    raise ValueError(f"{x}: give it in dataSchema")\n'

    assert [word for found, _ in texts_in(ast.parse(text), ("delta",)) for word in WORD.findall(found)] == [
        "dataSchema"
    ]
