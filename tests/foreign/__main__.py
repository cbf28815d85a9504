"""Run Pydantic AI's own tests twice, as they are and with durable agents: `python -m tests.foreign [CHECKOUT]`.

Every test that passes as it is must pass with durable agents, or be in `known.toml` with the reason. The tests are not in the
package, and not here. They are in a checkout of Pydantic AI, if possible of the installed version: at the given path, at
`ANTIPHON_PYDANTIC_AI`, or at `.tools/pydantic-ai`. What they need besides our own requirements is installed into
`.tools/foreign`.
"""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
FILES = [
    "ag_ui",
    "agent",
    "capability_process_event_stream",
    "capability_stream_teardown",
    "dbos",
    "deps",
    "direct",
    "history_processor",
    "nested_sync_agent",
    "run_cancellation",
    "run_context_usage_limits",
    "streaming",
    "streaming_errors",
    "sync_stream_loop_affinity",
    "tool_availability",
    "tool_search",
    "tools",
    "toolsets",
    "transcript_repair",
    "ui",
    "usage_limits",
    "validation_context",
    "vercel_ai",
]
NEEDED = [
    "brotli",
    "dbos",
    "dirty-equals",
    "httpx",
    "logfire",
    "opentelemetry-instrumentation-logging>=0.60b0",  # DBOS imports a module that older ones lack
    "opentelemetry-sdk",
    "pytest-mock",
    "pytest-recording",
    "vcrpy",
]


def main() -> int:
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ANTIPHON_PYDANTIC_AI", str(ROOT / ".tools" / "pydantic-ai"))
    checkout = Path(given).resolve()
    if not (checkout / "tests" / "conftest.py").is_file():
        say(f"NOT RUN: there are no tests of Pydantic AI at {checkout}.")
        tag = f"v{version('pydantic-ai-slim')}"
        say(f"git clone --depth 1 --branch {tag} https://github.com/pydantic/pydantic-ai .tools/pydantic-ai")
        return 0
    python = environment()
    if python is None:
        say("NOT RUN: what the tests of Pydantic AI need cannot be installed here.")
        return 0
    bare, durable = outcomes(python, checkout, "bare"), outcomes(python, checkout, "durable")
    passing = {name for name, is_passed in bare.items() if is_passed}
    lost = sorted(name for name in passing if not durable.get(name))
    known = {each["test"]: each["reason"] for each in tomllib.loads((HERE / "known.toml").read_text())["tests"]}
    say(f"{len(bare)} tests of Pydantic AI: {len(passing)} pass, {len(passing) - len(lost)} of them with durable agents")
    for name in sorted(known.keys() & (passing - set(lost))):
        say(f"passes, and is in known.toml: {name}")
    new = [name for name in lost if name not in known]
    for name in new:
        say(f"FAILS with durable agents: {name}")
    return 1 if new or not passing else 0


def environment() -> Path | None:
    """Return the Python that has what the tests need; None if it cannot be made."""
    uv, folder = ROOT / ".uv" / "bin" / "uv", ROOT / ".tools" / "foreign"
    python, is_ready = folder / "bin" / "python", folder / ".ready"
    changed = max(each.stat().st_mtime for each in (ROOT / "requirements.lock", Path(__file__)))
    if is_ready.exists() and is_ready.stat().st_mtime > changed:
        return python
    own = ["pip", "install", "--quiet", "--python", str(python)]
    steps = [
        ["venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
        ["pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(ROOT / "requirements.lock")],
        [*own, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)],
        [*own, *NEEDED],
    ]
    for step in steps:
        if subprocess.run([str(uv), *step], check=False).returncode != 0:
            return None
    is_ready.touch()
    return python


def outcomes(python: Path, checkout: Path, way: str) -> dict[str, bool]:
    """Run the tests, and return which have passed."""
    report = ROOT / ".tools" / f"foreign-{way}.xml"
    report.unlink(missing_ok=True)
    files = [f"tests/test_{name}.py" for name in FILES if (checkout / "tests" / f"test_{name}.py").is_file()]
    plugin = ["-p", "missing_names", *(["-p", "durable_agents"] if way == "durable" else [])]
    # Their own settings make warnings errors; those of other versions of packages are none of theirs.
    options = ["-q", "-n", "auto", "-p", "no:cacheprovider", "--inline-snapshot=disable", "--timeout=60", "--tb=no"]
    settings = ["-o", "filterwarnings=ignore::DeprecationWarning", f"--junitxml={report}"]
    surroundings = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "BLOCKBUSTER_ENABLED": "false",
        "FOREIGN_FILES": os.pathsep.join(files),
    }
    command = [str(python), "-m", "pytest", *options, *settings, *plugin, *files]
    subprocess.run(command, cwd=checkout, env=surroundings, check=False, stdout=subprocess.DEVNULL)
    if not report.exists():
        return {}
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": len(case) == 0 or has_passed(case) for case in cases}


def has_passed(case: ElementTree.Element) -> bool:
    return not any(child.tag in ("failure", "error", "skipped") for child in case)


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
