"""`python -m tests.kafka.serve [port]`: a broker for trying by hand, until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from tests.kafka.artifacts import BROKER, ArtifactsMissingError
from tests.kafka.broker import KafkaBroker

_DEFAULT_PORT = 9092


def main() -> None:
    """Start it, say where it is, and take it and its data away at the end."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else _DEFAULT_PORT
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="kafka-") as folder, contextlib.suppress(KeyboardInterrupt):
        if not BROKER.folder.is_dir():
            print(f"resolving Apache Kafka {BROKER.version} into {BROKER.folder} (once, some 45 MB)", flush=True)
        try:
            broker = KafkaBroker.from_cache(Path(folder), port=port)
        except ArtifactsMissingError as error:
            sys.exit(f"error: Apache Kafka cannot be had: {error}.")
        try:
            broker.start()
            print(
                f"Apache Kafka {BROKER.version}, one node, nothing replicated, no authentication.\n"
                f"  bootstrap address  {broker.bootstrap}\n"
                f"  data and output    {folder}, deleted at the end\n"
                "Topics are not created by themselves. Ctrl-C stops it.",
                flush=True,
            )
            signal.pause()
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
