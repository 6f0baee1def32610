"""Where the engine's event times of records that nobody has read yet come from."""

__all__: list[str] = []
