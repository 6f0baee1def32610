"""Benchmarks: every figure is a ratio between things measured side by side in one run."""
