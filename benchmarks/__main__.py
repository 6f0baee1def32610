"""`python -m benchmarks [--quick]`: run them all and print one table each."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import capacity, channel, fetching, files, gateway, kafka, many_files, monitoring, planning


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure, side by side, as ratios.")
    parser.add_argument("--quick", action="store_true", help="smaller inputs: under five minutes")
    quick = parser.parse_args().quick
    planning.run(quick=quick)
    many_files.run(quick=quick)
    gateway.run(quick=quick)
    fetching.run(quick=quick)
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        # First of those that start Spark: a JVM takes Spark's Kafka source when it starts, or never. Not in a quick
        # run: writing what is then read takes longer than all else.
        if not quick:
            kafka.run(Path(folder))
        channel.run(Path(folder), quick=quick)
        files.run(Path(folder), quick=quick)
        capacity.run(Path(folder), quick=quick)
        monitoring.run(Path(folder), quick=quick)


if __name__ == "__main__":
    main()
