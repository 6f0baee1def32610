"""The command line: `streaming-source audit`, `explain`, `report`, `watch`, `simulate`, `take-over` and `demo`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the `streaming-source` script."""
    try:
        from streaming_source.tools.cli.main import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
            raise
        message = f"error: the command line needs {error.name}: pip install 'spark-watermark-alignment[cli]'"
        print(message, file=sys.stderr)
        raise SystemExit(2) from None
    app()
