"""Run the tests that failed in the last run once more, one after the other, and say loudly which pass now.

Some tests watch real processes, browsers and databases, and a busy machine may make one of them late. CI uses this, so that
one late test does not refuse a change. A test that passes only alone is a defect all the same. It is named: mend it.
More than a few failures are no accident, and are not tried again. Neither is a run that did not come to its end, and the
core: its tests watch nothing, and the others run after them.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MOST = 3
"""Failures that are tried again."""
_CACHE = Path(".pytest_cache/v")
_SOME_FAILED = 1
"""The exit code of pytest after a whole run in which tests failed."""


def main() -> int:
    code, failed = _read("antiphon/exit"), sorted(_read("cache/lastfailed") or ())
    if code != _SOME_FAILED or not 0 < len(failed) <= MOST or any(each.startswith("tests/messages") for each in failed):
        print(f"not tried again: {len(failed)} tests failed, and pytest ended with {code}")
        return 1
    print(f"\nAGAIN, alone: {', '.join(failed)}\n", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", "--inline-snapshot=disable", *failed]
    code = subprocess.run(command, check=False).returncode  # noqa: S603 (own words)
    if code == 0:
        print(f"\nFLAKY: failed among all tests, passed alone; mend it: {', '.join(failed)}")
        print("Everything else passed in the run above.")
    return code


def _read(name: str) -> Any:
    """Return what the last run of pytest has left."""
    path = _CACHE / name
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
