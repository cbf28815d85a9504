"""Requests that Schemathesis makes from the OpenAPI document: valid ones, wrong ones, and every other method.

No answer is a fault of the server, none differs from the document, what the document forbids is refused, a path without a
token says nothing, and `Allow` is exact. In `make test` a few for each endpoint; in `make chaos` more than 2,000.
"""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.server.running import served

from antiphon.server import ServerLimits

pytestmark = pytest.mark.slow

IS_LONG = "ANTIPHON_CHAOS" in os.environ
LEAST = 2_000 if IS_LONG else 150
ARGUMENTS = (
    ("--phases", "coverage,fuzzing", "--max-examples", "40") if IS_LONG else ("--phases", "fuzzing", "--max-examples", "2")
)
SETTINGS = """
[checks]
# A name that nobody has is valid by its form: the model, the format or the place of a fork.
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "408", "409", "413", "414", "415", "422"]
"""


def test_requests_made_from_the_document_find_nothing(tmp_path: Path, demonstration: Path) -> None:
    """The stream of events does not end, so it is left to its own tests."""
    shutil.copy(demonstration, tmp_path / "ledger.db")
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    code, said = asyncio.run(_run(tmp_path))
    assert code == 0, said
    (count,) = re.findall(r"([\d,]+) generated", said)
    assert int(count.replace(",", "")) >= LEAST, said


async def _run(tmp_path: Path) -> tuple[int | None, str]:
    """Serve the ledger of a folder, have the requests made, and return the exit code and what was said."""
    limits = ServerLimits(requests_per_second=1e6, failures_per_second=1e6, runs=1_000_000)
    async with served(tmp_path, limits=limits) as server:
        program = (sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/api/openapi.json")
        header = ("--header", f"Authorization: Bearer {server.token}")
        more = ("--exclude-path", "/api/events", "--seed", "1", "--no-color", "--request-timeout", "20")
        running = await asyncio.create_subprocess_exec(
            *(*program, *header, *more, *ARGUMENTS),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "hypothesis")},
        )
        try:
            out, _ = await running.communicate()
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()
    return running.returncode, "\n".join(line[:300] for line in out.decode(errors="replace").splitlines())
