"""Documents that do not depend on the ledger: the OpenAPI document, and the files of the page.

The OpenAPI document is written from the table of endpoints and the classes of their values.

The files of the page are served at URLs that contain a hash of all of them. `/` is the page itself. A browser revalidates it
each time, and gets 304 if nothing has changed. Everything that it imports is below `/page/HASH/`, which a browser caches
permanently: changed files have another hash. The files contain no data, so they need no token; the Host of the request was
checked before (`_access.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from starlette.responses import Response

from antiphon import __version__
from antiphon.server._api import ApiEndpoint, Lines
from antiphon.server._values import ProblemValue

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


# ---------------------------------------------------------------- the OpenAPI document

_REFS: Final = "#/components/schemas/{model}"
_ERRORS: Final = {
    "400": "The request cannot be read",
    "401": "There is no valid token",
    "403": "Another site asks, or a session without an Origin",
    "404": "There is nothing here, or this token may not use it",
    "405": "There is something here for other methods; `Allow` has them",
    "408": "The body did not come in time",
    "409": "The thread is in another state",
    "413": "The body is too large",
    "415": "The body is not JSON by its type",
    "422": "A parameter or the body is not valid",
    "429": "Too many requests or streams",
    "503": "The server or its ledger cannot do it now",
}


def openapi(endpoints: Iterable[ApiEndpoint]) -> dict[str, Any]:
    """Return the document as JSON."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schemas)
        kind = "application/problem+json" if endpoint.errors is ProblemValue else "application/json"
        problem = {kind: {"schema": _schema(endpoint.errors, schemas, "serialization")}}
        operation["responses"] |= {status: {"description": meaning, "content": problem} for status, meaning in _ERRORS.items()}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    security = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token of `antiphon token make`"},
        "session": {"type": "apiKey", "in": "cookie", "name": "antiphon-PORT", "description": "A cookie of POST /api/session"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "antiphon", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": security},
        "security": [{"token": []}, {"session": []}],
    }


def _operation(endpoint: ApiEndpoint, schemas: dict[str, Any]) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", endpoint.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    query = TypeAdapter(endpoint.query).json_schema(by_alias=True)
    needed, fields = query.get("required", []), query.get("properties", {})
    parameters += [{"name": name, "in": "query", "required": name in needed, "schema": fields[name]} for name in fields]
    if endpoint.returns is Lines or isinstance(endpoint.returns, str):  # a media type
        kind = "application/x-ndjson" if endpoint.returns is Lines else endpoint.returns
        content: dict[Any, Any] = {kind: {"schema": {"type": "string"}}}
    else:
        content = {"application/json": {"schema": _schema(endpoint.returns, schemas, "serialization")}}
    operation: dict[str, Any] = {
        "summary": endpoint.about,
        "description": "Needs any token." if endpoint.scope is None else f"Needs the scope `{endpoint.scope}`.",
        "parameters": parameters,
        "responses": {str(endpoint.status): {"description": "Done", "content": content}},
    }
    if endpoint.body is not None:
        schema = _schema(endpoint.body, schemas, "validation")
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _schema(kind: Any, schemas: dict[str, Any], mode: Any) -> dict[str, Any]:
    """Return the schema of a class, by reference; its parts go to the shared ones."""
    schema = TypeAdapter(kind).json_schema(ref_template=_REFS, mode=mode)
    schemas.update(schema.pop("$defs", {}))
    if "$ref" in schema or "title" not in schema:
        return schema
    schemas[schema["title"]] = schema
    return {"$ref": _REFS.format(model=schema["title"])}


# ---------------------------------------------------------------- the page

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
    contents, tag = _files()
    if len(steps) < 3 or steps[:2] != ("page", tag):  # noqa: PLR2004 (page, hash, name)
        return None
    name = "/".join(steps[2:])
    if name not in contents or name == _INDEX:
        return None
    return Response(contents[name], 200, _FOR_EVER, _KINDS[name.rpartition(".")[2]])


def _index(headers: dict[bytes, bytes]) -> Response:
    contents, tag = _files()
    caching = {"etag": f'"{tag}"', "cache-control": "no-cache"}
    if headers.get(b"if-none-match") == caching["etag"].encode():
        return Response(status_code=304, headers=caching)
    return Response(contents[_INDEX].replace(_PLACE, f"/page/{tag}".encode()), 200, caching, _KINDS["html"])


@cache
def _files() -> tuple[dict[str, bytes], str]:
    """Return the files of the page by name, and the hash of all of them."""
    contents = dict(sorted(_below(files("antiphon.server") / "page", "")))
    digest = sha256()
    for name, content in contents.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return contents, digest.hexdigest()[:16]


def _below(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    entries: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        name = f"{path}{entry.name}"
        if entry.is_dir():
            entries += _below(entry, f"{name}/")
        elif entry.name.rpartition(".")[2] in _KINDS:
            entries.append((name, entry.read_bytes()))
    return entries
