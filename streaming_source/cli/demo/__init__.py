"""The demo: a year of flights, counted by batch, by Spark's own stream, and by an aligned stream."""

from streaming_source.cli.demo.command import DemoSettings, run_demo
from streaming_source.cli.demo.flights import DemoError

__all__ = ["DemoError", "DemoSettings", "run_demo"]
