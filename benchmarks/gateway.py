"""What telling the planner costs: messages and reports a second, from one task to a gateway in another process."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

from alignment.events import RangeReport
from benchmarks.report import Report
from streaming_source.gateway import GatewayClient, GatewayServer

SIZES = (1, 100, 2_000)


def run(report: Report, folder: Path, *, quick: bool) -> None:
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    server = processes.Process(target=_serve, args=(theirs,))
    server.start()
    address = ours.recv()
    rows = []
    for batch, size in enumerate(SIZES):
        reports = [RangeReport(f"orders-{number:06d}", 0, 1_000, 1, 10**15) for number in range(size)]
        client = GatewayClient(address)
        seconds = []
        for task in range(10):
            # No task may take long, so each sends a few.
            messages = client.for_task(batch, task, 0)
            for _ in range(5 if quick else 30):
                began = time.perf_counter()
                assert messages.send_reports(reports)
                seconds.append(time.perf_counter() - began)
        client.close()
        usual = statistics.median(seconds)
        rows.append([f"{size:,}", f"{seconds[0] * 1e3:.1f} ms", f"{usual * 1e3:.2f} ms", f"{size / usual:,.0f}"])
    ours.send(None)
    server.join()
    report.table(
        "Reports to a gateway (one task at a time)", ["reports a message", "first", "median", "reports a second"], rows
    )


class _Listener:
    def on_reports(self, reports: object) -> None:
        pass

    def on_event(self, subtask_id: int, event: object) -> None:
        pass

    def take_events(self, subtask_id: int) -> list[object]:
        return []


def _serve(until: Connection) -> None:
    server = GatewayServer(_Listener(), None)
    until.send(server.start())
    until.recv()
    server.close()
