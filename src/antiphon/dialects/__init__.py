"""Other people's message formats, as pure functions to and from the core."""

from antiphon.dialects._api import Dialect, Encoded, Loss, Losses
from antiphon.dialects._losses import FACETS, meaning
from antiphon.dialects._registry import Detected, detect, get, names
from antiphon.dialects._stream import Delta, Stream
from antiphon.dialects._verbs import Projection, convert, decode, encode

__all__ = [
    "FACETS",
    "Delta",
    "Detected",
    "Dialect",
    "Encoded",
    "Loss",
    "Losses",
    "Projection",
    "Stream",
    "convert",
    "decode",
    "detect",
    "encode",
    "get",
    "meaning",
    "names",
]
