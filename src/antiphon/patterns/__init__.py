"""Ways of working together, one folder each: `postchain` is a thread that goes through six phases."""

__all__: list[str] = []
