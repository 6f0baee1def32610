"""The suite for connectors, over generated records."""

from __future__ import annotations

import numpy as np

from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.testing.conformance import Expected, SourceConformance


class TestGenerator(SourceConformance):
    def fill(self, splits: int, rows: int = 12) -> Expected:
        self.shape = {"splits": splits, "rows_per_split": rows}
        source = self.create_source(bounded=True)
        times = {n: source.generator.times(n, np.arange(rows)).tolist() for n in range(splits)}
        return {self.split_id(n): list(enumerate(of_split)) for n, of_split in times.items()}

    def create_source(self, bounded: bool) -> DataGeneratorSource:
        return DataGeneratorSource(**self.shape, bounded=bounded, rows_per_second=1, skew=2, disorder="3 seconds")
