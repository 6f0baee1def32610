"""Where files lie: file systems, what is selected and listed there, and what names of directories say."""

__all__: list[str] = []
