"""What the notebooks draw with: one style, and a history's table as lines, one for each split."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.compute as pc
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours: told apart under every common colour blindness.
BLUE, GREEN, ORANGE, PURPLE = "#0072B2", "#009E73", "#D55E00", "#CC79A7"
INK, GREY = "#1A1A1A", "#8A8A8A"

plt.rcParams.update(
    {
        "figure.figsize": (8.5, 3.6),
        "figure.dpi": 90,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#E4E4E4",
        "legend.frameon": False,
    }
)


def by_split(table, *columns):
    """Of a history's `splits()`: {split: a list for each of the columns}, in the order of the micro-batches."""
    names = sorted(pc.unique(table["split"]).to_pylist())
    parts = {name: table.filter(pc.field("split") == name) for name in names}
    return {name: [part[column].to_pylist() for column in columns] for name, part in parts.items()}


def minutes(times, start_us):
    """Times of a history in minutes since `start_us`; where there is none a line is interrupted."""
    return [math.nan if time is None else (time.timestamp() - start_us / 1e6) / 60 for time in times]


def name_minutes(axes, start_us, what="event time"):
    """Name the axis of `minutes`, with the date and the year that they begin at; its ticks are round."""
    start = np.datetime_as_string(np.datetime64(start_us, "us"), unit="m").replace("T", " ")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 3, 6, 10], integer=True))
    axes.set(ylabel=f"{what}\n(minutes since {start} UTC)")


def draw_steps(axes, table, column, to_y=list, **style):
    """One column of a history's table, micro-batch by micro-batch."""
    axes.step(table["batch"].to_pylist(), to_y(table[column].to_pylist()), where="mid", **style)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="micro-batch")


def label(axes, x, y, text, colour=INK):
    """Write a line's name at its end."""
    axes.annotate(text, (x, y), (6, 0), textcoords="offset points", va="center", color=colour, weight="bold")
