"""`python -m benchmarks [NAME ...] [--quick] [--json FILE]`: measure, side by side, and print ratios and verdicts."""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
from pathlib import Path

from benchmarks import release
from benchmarks.report import Report, markdown

# Kafka comes first of those that start Spark: a JVM takes Spark's Kafka source when it starts, or never.
QUICK = ("planning", "many_files", "tables", "iceberg", "gateway", "fetching", "parquet", "replay", "starting")
_BY_FLINK = ("allowed_lateness", "flink", "backlog", "history")
PEERS = (*_BY_FLINK, "audit", "batch_range", "files", "formats", "hops", "object_store", "repair", "z_order")
ALL = ("kafka", *QUICK, *PEERS, "monitoring", "capacity", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure, side by side, as ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; without, all")
    parser.add_argument("--quick", action="store_true", help=f"smaller inputs; without names only {', '.join(QUICK)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--release", action="store_true", help=f"add the figures to those in {release.FIGURES}")
    arguments = parser.parse_args()
    if arguments.release and not arguments.quick:
        parser.error("figures of a release are those of the quick benchmarks: give --quick as well")
    if unknown := set(arguments.names) - set(ALL):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    # Spark starts Python processes by the dozen: without compiled modules each would compile ours anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        for name in arguments.names or (QUICK if arguments.quick else ALL):
            print(f"\n==> {name}", flush=True)
            module = importlib.import_module(f"benchmarks.{name}")
            module.run(report, Path(folder), quick=arguments.quick)
    report.print_targets()
    if arguments.release:
        release.add(report.targets)
    elif arguments.quick:
        _compare(report)
    if arguments.json:
        report.write(arguments.json)


def _compare(report: Report) -> None:
    """Print what grew since the last release; in a workflow of GitHub, on the page of its run as well."""
    title, lines = release.compared(report.targets)
    table = f"\n\n{markdown(['what', 'last release', 'now', 'worse by'], lines)}" if lines else ""
    print(f"\n{title}{table}", flush=True)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a") as file:
            file.write(f"{title}{table}\n")


if __name__ == "__main__":
    main()
