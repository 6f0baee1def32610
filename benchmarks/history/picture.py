"""What each way loses and doubles, as bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["PICTURE", "draw"]

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "history.png"
_INK, _RED, _AMBER, _BLUE = "#1A1A1A", "#D55E00", "#E69F00", "#0072B2"


def draw(ways: Mapping[str, tuple[int, int]], records: int) -> None:
    """Draw how many of so many records each way loses and doubles. The first is ours."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.5, 0.5 * len(ways) + 1.3), layout="constrained")
    names = list(ways)
    lost, doubled = zip(*ways.values(), strict=True)
    axes.barh(names, lost, color=_RED, label="lost")
    axes.barh(names, doubled, left=lost, color=_AMBER, label="doubled")
    for place, counts in enumerate(ways.values()):
        words = [f"{count:,} {what}" for count, what in zip(counts, ("lost", "doubled"), strict=True) if count]
        text, colour = (", ".join(words), _INK) if words else ("each record once", _BLUE)
        axes.annotate(
            text, (sum(counts), place), (6, 0), textcoords="offset points", va="center", color=colour, weight="bold"
        )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max(map(sum, ways.values())))
    axes.set_title(f"A history and its topic, {records:,} records", loc="left", weight="bold")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="records")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#E4E4E4")
    axes.set_axisbelow(True)
    figure.savefig(PICTURE, dpi=120)
    plt.close(figure)
