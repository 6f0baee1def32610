"""Reads of each micro-batch from each split, one module a kind of source."""
