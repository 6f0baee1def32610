"""Lists the public names with their parameters: `python -m tests.project.public_api` writes docs/public-api.txt."""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final

import griffe

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "public-api.txt"

MODULES: Final = (
    "streaming_source",
    "streaming_source.connectors",
    "streaming_source.connectors.files",
    "streaming_source.api",
    "streaming_source.reader",
    "streaming_source.testing",
    "streaming_source.testing.conformance",
    "streaming_source.monitoring.history",
    "streaming_source.auditing",
    "streaming_source.exceptions",
)


def loaded() -> griffe.GriffeLoader:
    """A loader that has read both packages, and resolved what one exports of another."""
    loader = griffe.GriffeLoader(search_paths=[ROOT], allow_inspection=False)
    for package in ("alignment", "streaming_source"):
        loader.load(package)
    loader.resolve_aliases(implicit=True, external=False)
    return loader


def public_api() -> str:
    """A line for each public name, member and parameter; what it returns is not in it.

    What a class inherits from a public one is listed there.
    """
    loader = loaded()
    exported = {
        (name, str(export)): loader.modules_collection[f"{name}.{export}"]
        for name in MODULES
        for export in loader.modules_collection[name].exports or ()
    }
    public = {found.canonical_path for found in exported.values()}
    lines = [
        f"{name}.{line}" for (name, export), found in sorted(exported.items()) for line in _of(export, found, public)
    ]
    return "\n".join([*lines, ""])


def _of(name: str, found: griffe.Object | griffe.Alias, public: Set[str]) -> Iterator[str]:
    target = found.final_target if isinstance(found, griffe.Alias) else found
    if isinstance(target, griffe.Function):
        yield f"{name}({_parameters(target)})"
    elif isinstance(target, griffe.Class):
        yield f"{name}({_parameters(target)})"
        for member, value in sorted(target.all_members.items()):
            home = value.final_target.parent if isinstance(value, griffe.Alias) else None
            is_listed_there = home is not None and home.canonical_path in public
            if not member.startswith("_") and not is_listed_there:
                yield from _of(f"{name}.{member}", value, public)
    else:
        yield name


def _parameters(found: griffe.Function | griffe.Class) -> str:
    texts = []
    for each in found.parameters:
        if each.name in ("self", "cls"):
            continue
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(each.kind.value if each.kind else "", "")
        only = " (keyword)" if each.kind is griffe.ParameterKind.keyword_only else ""
        # Of an option the page of options has the default.
        is_call = isinstance(each.default, griffe.ExprCall)
        default = "" if each.default is None or star else " = ..." if is_call else f" = {each.default}"
        texts.append(f"{star}{each.name}{default}{only}")
    return ", ".join(texts)


if __name__ == "__main__":
    PAGE.write_text(public_api(), encoding="utf-8")
