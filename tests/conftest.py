"""How the tests run: how much Hypothesis tries, async tests, the signals of children, and the limit of `make quick`.

Hypothesis tries a little, and always the same, in `make test`; a lot, and ever new, in `make chaos`.
"""

import atexit
import gc
import inspect
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.charmap import charmap
from tests import forked
from tests.children import have_children_handle_signals
from tests.clock import share_imports, shared_work, used
from tests.loops import run
from tests.postgres import Server, running_postgres, share_installation
from tools.npm import made_once

ROOT = Path(__file__).parents[1]
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]

_MOST = 2.0
"""Seconds of processor time that a test may take which is not marked slow. A slow one takes 0.25 s on a quiet machine."""
_BEGAN = pytest.StashKey[float]()

settings.register_profile("default", max_examples=40, deadline=None, suppress_health_check=_QUIET, derandomize=True)
settings.register_profile("quick", max_examples=15, deadline=None, suppress_health_check=_QUIET, phases=[Phase.generate])
settings.register_profile("long", max_examples=20_000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_IN_MEMORY = Path("/dev/shm")
_SPACE = 4 << 30
"""Bytes that must be free there: a whole run needs one or two gibibytes."""


def _write_to_memory() -> None:
    """Have the files of the tests in memory, where there is space: each ledger waits for its disk several times.

    The tests kill processes, not the machine: what a killed process has written there is kept, as on a disk. If TMPDIR is set,
    the files are there; the long runs use the disk.
    """
    if {"TMPDIR", "PYTEST_DEBUG_TEMPROOT", "ANTIPHON_CHAOS"} & os.environ.keys() or not os.access(_IN_MEMORY, os.W_OK):
        return
    disk = os.statvfs(_IN_MEMORY)
    memory = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    has_space = memory is not None and min(disk.f_bavail * disk.f_frsize, int(memory[1]) * 512) > _SPACE  # half of it
    if has_space and not disk.f_flag & os.ST_NOEXEC:  # tests write scripts, and run them
        os.environ["TMPDIR"] = str(_IN_MEMORY)
        tempfile.tempdir = None


_write_to_memory()
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="antiphon-config-")
"""No test reads or writes what the developer trusts. Set before tests copy the environment for their children."""
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    have_children_handle_signals()
    share_installation()
    if _without_slow_tests(config):
        share_imports()


def _without_slow_tests(config: pytest.Config) -> bool:
    return bool(config.getoption("markexpr") == "not slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep what collection makes, ten thousand tests and their modules, out of every later garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)  # the rest is garbage of tests; looking for it less often saves a tenth of the time


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test. One that is marked `virtual_time` does not really wait; a mark `timeout` gives it more time."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    coroutine = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    if pyfuncitem.get_closest_marker("virtual_time"):
        from tests.runtime.actors import virtually

        virtually(coroutine)
    else:
        limit = pyfuncitem.get_closest_marker("timeout")
        run(coroutine, *(limit.args[:1] if limit is not None else ()))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = used()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """Charge a fixture that several tests share to none of them."""
    if fixturedef.scope == "function":
        return (yield)
    with shared_work():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def table_of_characters() -> None:
    """Have Hypothesis make its table of all characters before the first test: that takes it two seconds, once a machine."""
    charmap()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep the marks honest: a test that is not marked slow must not take long where the slow ones are left out."""
    result = yield
    took = used() - item.stash[_BEGAN]
    if _without_slow_tests(item.config) and took > _MOST:
        pytest.fail(f"this took {took:.1f} s of processor time: make it faster, or mark it slow", pytrace=False)
    return result


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep how the run has ended, for `tools/again.py`."""
    cache = getattr(session.config, "cache", None)  # a run may be without
    if cache is not None and not hasattr(session.config, "workerinput"):
        cache.set("antiphon/exit", int(exitstatus))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the matrix of the dialects, where it was measured."""
    passed = terminalreporter.stats.get("passed", ())
    if any("test_the_matrix_in_the_docs_is_the_measured_one[matrix" in report.nodeid for report in passed):
        page = (Path(__file__).parents[1] / "docs" / "dialects" / "index.md").read_text()
        terminalreporter.section("dialects: what becomes of the samples, from row to column")
        terminalreporter.write_line(page.split("<!-- matrix -->\n")[1].split("<!-- /matrix -->")[0].rstrip())


@pytest.fixture(scope="session")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of `make serve`: the example teams, six phases, an approval that waits, a parked call. Copy it."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "demonstration"  # one for all workers
    with made_once(place) as folder:
        if folder is not None:
            forked.run([sys.executable, "-m", "tools.demo", str(folder)], cwd=ROOT).check_returncode()
    return place / "serve.db"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server that all tests of one process share; each test has its own tenants or its own database."""
    with shared_work():
        running = running_postgres()
        server = running.__enter__()
    try:
        yield server
    finally:
        running.__exit__(None, None, None)
