"""The protocol of actors: envelopes, the catalogue of requests with their replies, validation, and JSON.

No code here sends a message. A value that an envelope does not allow raises Pydantic's `ValidationError`. Data that is not
valid for its type, or is of another type, raises a `ValueError` that names the wrong field.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names
from antiphon.protocol import _catalogue as _catalogue  # declares the message types, for all that is looked up by type

__getattr__, __dir__ = _lazy_names(__name__)
