"""The libraries of the page: fetch them by `npm pack`, check them, and write the files that the page imports.

`make` does not need it: the files are in the repository. It is run by hand when a version in `vendor.json` changes:

    python tools/vendor.py            # write the files, and their hashes into vendor.json
    python tools/vendor.py --check    # compare the files in the repository with the packages

A package is checked by the SHA-512 that is recorded for it. One thing is changed in a file: a module of a browser cannot
import by the name of a package without an inline import map, which the content security policy refuses. So names become paths.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "src" / "antiphon" / "server" / "page" / "vendor"
LIST = FOLDER / "vendor.json"
PATHS = {"preact/hooks": "./hooks.js", "preact": "./preact.js", "@preact/signals-core": "./signals-core.js"}


def _packed(name: str, version: str, folder: Path) -> bytes:
    """Return the archive of a package, from the registry that npm is set up for."""
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{name}@{version}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)  # noqa: S603 (the names are in the repository)
    (archive,) = folder.glob("*.tgz")
    data = archive.read_bytes()
    archive.unlink()
    return data


def _as_served(data: bytes) -> bytes:
    """Return a module with paths in place of package names, and without the address of its source map."""
    text = data.decode()
    for name, path in PATHS.items():
        for quote in ('"', "'"):
            for word in ("from", "import", "from ", "import "):
                text = text.replace(f"{word}{quote}{name}{quote}", f"{word}{quote}{path}{quote}")
    lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL=")]
    return ("\n".join(lines) + "\n").encode()


def main(*, is_check: bool) -> int:
    """Fetch and write, or compare. Return how many files are not what they should be."""
    listed = json.loads(LIST.read_text())
    wrong = 0
    for name, package in listed.items():
        with tempfile.TemporaryDirectory() as folder:
            data = _packed(name, package["version"], Path(folder))
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
            if package.setdefault("integrity", integrity) != integrity:
                raise SystemExit(f"{name}@{package['version']} is another archive than the recorded one: {integrity}")
            archive = Path(folder) / "archive.tgz"
            archive.write_bytes(data)
            with tarfile.open(archive) as members:
                for own, about in package["files"].items():
                    member = members.extractfile(f"package/{about['from']}")
                    if member is None:
                        raise SystemExit(f"{name} has no file {about['from']}")
                    content = member.read()
                    content = _as_served(content) if own.endswith(".js") else content
                    if is_check:
                        wrong += (FOLDER / own).read_bytes() != content
                    else:
                        (FOLDER / own).write_bytes(content)
                        about["sha256"] = hashlib.sha256(content).hexdigest()
    if not is_check:
        LIST.write_text(json.dumps(listed, indent=2) + "\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main(is_check="--check" in sys.argv[1:]))
