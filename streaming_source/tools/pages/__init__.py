"""The pages of a query: its history drawn, and the same live."""
