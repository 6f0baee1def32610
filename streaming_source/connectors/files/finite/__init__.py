"""Files as splits: each is finite, and they are begun in an order."""

__all__: list[str] = []
