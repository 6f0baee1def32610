"""The command `watch`: the page of a checkpoint, live."""

from __future__ import annotations

import threading
from typing import Annotated

import typer


def watch_query(
    checkpoint: Annotated[
        str, typer.Argument(help="The query's checkpointLocation: a path, or s3://... It need not be there yet.")
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of 127.0.0.1 that the page is at; 0 for any that is free.")
    ] = 8400,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds from one look at the checkpoint to the next.")
    ] = 1.0,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="A random token in the address keeps other users of this machine out. Without it the address is the "
            "same at each start.",
        ),
    ] = True,
) -> None:
    """Serve the page of `report`, live: it changes in the browser as the query proceeds, until Ctrl-C.

    The query may be running or stopped, or start later: only its checkpoint is read, and Spark is not started. Nothing
    is written. Open the address that it prints: it has a token, and only this machine reaches it. From another one: ssh
    -L 8400:127.0.0.1:8400 MACHINE, then the same address. The exit code is 2 if the port is taken.
    """
    # Imported here: no other command serves.
    from streaming_source.tools.pages.watch import CheckpointWatch, WatchServer

    server = WatchServer(CheckpointWatch(checkpoint, interval), port, has_token=token)
    try:
        server.start()
        typer.echo(f"{checkpoint} is shown at {server.url} until Ctrl-C")
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
