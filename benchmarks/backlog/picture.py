"""The drift over time of all contestants, a panel a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.backlog.job import MAX_DRIFT_MS, Counted

__all__ = ["draw"]


def draw(jobs: Mapping[str, Mapping[str, Counted]], path: Path) -> None:
    """Draw the drift of the contestants of each job, against seconds since it began."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(jobs), figsize=(10, 4), sharey=True, squeeze=False, layout="constrained")
    for panel, (title, runs) in zip(panels[0], jobs.items(), strict=True):
        for name, counted in runs.items():
            at = [0.0, *(at for at, _ in counted.drifts)]
            minutes = [0.0, *(drift / 60_000 for _, drift in counted.drifts)]
            panel.plot(at, minutes, drawstyle="steps-post", label=name, linewidth=2.5 if name == "ours" else 1.2)
        panel.axhline(MAX_DRIFT_MS / 60_000, color="grey", linestyle=":", label="maxDrift")
        panel.set(title=title, xlabel="seconds", xlim=(0, None), ylim=(-2, None))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("drift in event time, minutes")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
