"""Retrieval: documents are cut into passages, with their headings and lines, and found by questions in several languages.

The names are listed in `__init__.pyi`, and imported when first used, so that what is not used costs nothing.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__, needs={"snowballstemmer": 'Snowball: pip install "antiphon[retrieval]"'})
