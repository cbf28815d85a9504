"""Serves the files of the page, at URLs that contain a hash of all of them.

`/` is the page itself. A browser revalidates it each time, and gets 304 if nothing has changed. Everything that it imports is
below `/page/HASH/`, which a browser caches permanently: changed files have another hash. The files contain no data, so they
need no token; the Host of the request was checked before (`_access.py`).
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_KINDS: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
"""The files that are served, by the end of their name, with the type."""
_INDEX: Final = "index.html"
_PLACE: Final = b"{page}"
"""Stands in the index for the folder of the other files."""
_FOR_EVER: Final = {"cache-control": "public, max-age=31536000, immutable"}


def page_response(steps: tuple[str, ...], headers: dict[bytes, bytes]) -> Response | None:
    """Return the answer to a GET of the page or of one of its files; None if the path is none of them."""
    if steps == ("",):
        return _index(headers)
    found, tag = _files()
    if len(steps) < 3 or steps[:2] != ("page", tag):  # noqa: PLR2004 (page, hash, name)
        return None
    name = "/".join(steps[2:])
    if name not in found or name == _INDEX:
        return None
    return Response(found[name], 200, _FOR_EVER, _KINDS[name.rpartition(".")[2]])


def _index(headers: dict[bytes, bytes]) -> Response:
    found, tag = _files()
    own = {"etag": f'"{tag}"', "cache-control": "no-cache"}
    if headers.get(b"if-none-match") == own["etag"].encode():
        return Response(status_code=304, headers=own)
    return Response(found[_INDEX].replace(_PLACE, f"/page/{tag}".encode()), 200, own, _KINDS["html"])


@cache
def _files() -> tuple[dict[str, bytes], str]:
    """Return the files of the page by name, and the hash of all of them."""
    found = dict(sorted(_below(files("antiphon.server") / "page", "")))
    whole = sha256()
    for name, content in found.items():
        whole.update(f"{name}\0{len(content)}\0".encode() + content)
    return found, whole.hexdigest()[:16]


def _below(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    entries: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        name = f"{path}{each.name}"
        if each.is_dir():
            entries += _below(each, f"{name}/")
        elif each.name.rpartition(".")[2] in _KINDS:
            entries.append((name, each.read_bytes()))
    return entries
