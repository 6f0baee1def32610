"""One run of a query, or of its repairs, that MERGEs windows into a Delta table: a process, which may be killed.

`python -m tests.delta.repair_query JARS FOLDER STEP`: `query` puts late records and runs the query; `before`, `within`
and `after` run the repairs and kill this process at that step of the write; `repair` runs them to their end. The last
two lines of what is printed are the rows of the table, and those that a batch has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.delta.spark_delta import session_with_delta
from tests.spark.repaired_query import DeltaMerge, Query


def main(jars: str, folder: str, what: str) -> None:
    root = Path(folder)
    session = session_with_delta(jars)
    query = Query(session, root, DeltaMerge(session, root))
    if what == "query":
        query.put_late()
    else:

        def step(name: str) -> None:
            if name == what:
                os.kill(os.getpid(), signal.SIGKILL)

        query.repair(step)
    print(json.dumps(query.target.rows()))
    print(json.dumps(query.expected))
    session.stop()


main(*sys.argv[1:])
