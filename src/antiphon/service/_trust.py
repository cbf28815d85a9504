"""Trust: the files whose code this user allows to run, by the hash of their content, and the folders that agents may use.

A team file can name commands (servers of the Model Context Protocol) and Python functions. A ledger can name files and
folders, and an attacker may have written it. So the code of a file runs only if this user has trusted exactly that content. A
folder that only a ledger names is used only if this user has used it before. The list of trusted files is a file of the user,
never a part of a ledger: `trusted.toml` in `$XDG_CONFIG_HOME/antiphon`, by default `~/.config/antiphon`.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from antiphon.errors import SetupError
from antiphon.messages import current_port

_FILE: Final = "trusted.toml"
_HEADER: Final = "# What this user lets antiphon use: files by the hash of their content, and folders by their path.\n"
_FOLDER: Final = "folder:"
_MOST_BYTES: Final = 10_000_000
_OTHERS_WRITE: Final = 0o022
_OTHERS: Final = 0o077


@dataclass(frozen=True, slots=True)
class TrustedFile:
    """A file, or a folder, that this user trusts."""

    digest: str
    """`sha256:` and the hash of the content; of a folder, `folder:` and its path."""
    path: str
    """Where it was when it was trusted. Another file with the same content is trusted as well."""
    at: datetime


def digest_of(data: bytes) -> str:
    """Return the hash of a content, as it is written in the list and in threads."""
    return f"sha256:{sha256(data).hexdigest()}"


def trust_file(path: Path) -> TrustedFile:
    """Trust a file with its current content, and return the new entry of the list."""
    return _add(_file_digest(path), path)


def trust_content(data: bytes, path: Path) -> TrustedFile:
    """Trust content that was read from a file before, even if the file has changed since, and return the entry."""
    return _add(digest_of(data), path)


def trust_folder(path: Path) -> TrustedFile:
    """Trust a folder, regardless of its content: agents may read its files when a thread that names it continues."""
    return _add(f"{_FOLDER}{path.resolve()}", path)


def is_trusted(path: Path) -> bool:
    """Whether this user trusts a file with its current content, or a folder."""
    return (f"{_FOLDER}{path.resolve()}" if path.is_dir() else _file_digest(path)) in _read()


def is_trusted_content(data: bytes) -> bool:
    """Whether this user trusts content that was read from a file. Run the content, not the file: it may have changed."""
    return digest_of(data) in _read()


def trusted_files() -> tuple[TrustedFile, ...]:
    """Return the entries of the list, in the order in which they were added."""
    return tuple(_read().values())


def distrust(path: Path) -> tuple[TrustedFile, ...]:
    """Remove all entries of a file or a folder, for every content that it had, and return them."""
    entries, resolved = _read(), str(path.resolve())
    removed = tuple(entry for entry in entries.values() if entry.path == resolved)
    if removed:
        _write({digest: entry for digest, entry in entries.items() if entry not in removed})
    return removed


def trust_list() -> Path:
    """Return the path of the list."""
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    # The XDG base directory specification says to ignore a relative path. It would mean another list in each folder.
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
    return folder / "antiphon" / _FILE


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read. Readers see the old one or the new one, also after a crash."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=f".{path.name}", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)  # a file of this name that others can read is not written to
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def read_private(path: Path) -> str | None:
    """Return the text of a file that `write_private` has written; None if there is none, or somebody else may use it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            is_own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
            return file.read(_MOST_BYTES).decode() if is_own and not status.st_mode & _OTHERS else None
    except (OSError, UnicodeDecodeError):
        return None


# ---------------------------------------------------------------- the list


def _file_digest(path: Path) -> str:
    try:
        return digest_of(path.read_bytes())
    except OSError as exc:
        raise SetupError(f"{path}: {exc.strerror or exc}") from exc


def _add(digest: str, path: Path) -> TrustedFile:
    entries = _read()
    if digest not in entries:
        text = os.fsencode(path.resolve()).decode(errors="replace")
        _write({**entries, digest: TrustedFile(digest, text, current_port().now().astimezone(UTC).replace(microsecond=0))})
        entries = _read()
    return entries[digest]


def _read() -> dict[str, TrustedFile]:
    path = trust_list()
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & _OTHERS_WRITE:
                raise SetupError(f"{path}: other users can write it, so it proves nothing; `chmod go-w {path}`")
            stored = tomllib.loads(file.read(_MOST_BYTES).decode())
        return {digest: TrustedFile(digest, str(entry["path"]), entry["at"]) for digest, entry in stored.items()}
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise SetupError(f"{path}: {exc.strerror or exc}") from exc
    except (ValueError, LookupError, TypeError) as exc:
        raise SetupError(f"{path}: not a list of trusted files: {exc}; mend or delete it, and trust the files again") from exc


def _write(trusted: Mapping[str, TrustedFile]) -> None:
    path = trust_list()
    entries = [
        f"\n[{_quoted(entry.digest)}]\npath = {_quoted(entry.path)}\nat = {entry.at.strftime('%Y-%m-%dT%H:%M:%SZ')}\n"
        for entry in trusted.values()
    ]
    try:
        write_private(path, "".join((_HEADER, *entries)))
    except OSError as exc:
        raise SetupError(f"{path}: {exc.strerror or exc}; it keeps what you trust") from exc


def _quoted(text: str) -> str:
    """Return text as a TOML string. TOML has the escapes of JSON, and needs one more, for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
