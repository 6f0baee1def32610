"""One micro-batch: from what was read and what is known to be there, to how far each split is read next."""

__all__: list[str] = []
