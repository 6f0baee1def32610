"""Sources that come with the library. Each is imported by its own name, so that none needs another's libraries."""

__all__: list[str] = []
