"""The table of coverage has each package, and a figure is counted as coverage counts it."""

from __future__ import annotations

from tests.project.covered import ROOT, measured, on_page, package_of


def test_each_package_is_in_the_table_and_what_is_less_than_95_has_a_reason() -> None:
    files = [path.relative_to(ROOT) for top in ("alignment", "streaming_source") for path in (ROOT / top).rglob("*.py")]
    formats = "streaming_source/spark/formats/"
    packages = {package_of(str(file)) for file in files if not str(file).startswith(formats)}
    assert set(on_page()) == packages
    assert on_page()["alignment"] >= 95
    for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines():
        name, percent, why = ([cell.strip() for cell in line.split("|")[1:4]] + [""] * 3)[:3]
        if name.strip("`") in on_page():
            assert bool(why) == (float(percent.removesuffix(" %")) < 95), line


def test_a_figure_is_of_statements_and_branches_together() -> None:
    def counts(covered: int, statements: int, taken: int, branches: int) -> dict[str, dict[str, int]]:
        names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
        return {"summary": dict(zip(names, (covered, statements, taken, branches), strict=True))}

    files = {
        "alignment/index/blocks.py": counts(8, 10, 1, 4),
        "alignment/drift.py": counts(6, 6, 0, 0),
        "streaming_source/connectors/kafka/split.py": counts(1, 4, 0, 0),
        "streaming_source/connectors/__init__.py": counts(1, 2, 0, 0),
        "streaming_source/py.py": counts(0, 0, 0, 0),
    }
    assert measured({"files": files}) == {
        "alignment": 75.0,
        "streaming_source.connectors": 50.0,
        "streaming_source.connectors.kafka": 25.0,
    }
