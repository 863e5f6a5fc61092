"""``pagetide demo``."""


def demo() -> None:
    """Demo."""
