"""One message layer and durable runtime for systems of many agents.

The public names are listed in `__init__.pyi`, and are imported when first used: `import antiphon` costs next to nothing.
"""

from antiphon._lazy import lazy_names as _lazy_names

__version__ = "0.1.0"

__getattr__, __dir__ = _lazy_names(__name__, needs={"pydantic_ai": 'Pydantic AI: pip install "antiphon[agents]"'})
