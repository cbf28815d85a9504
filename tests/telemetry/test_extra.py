"""The extra `otel`: the error without it, and no import of it where it is not used."""

import subprocess
import sys

import pytest


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_without_the_extra_the_error_says_what_to_install() -> None:
    code = """
import sys

import pytest
sys.modules["opentelemetry.sdk"] = None
try:
    import antiphon.telemetry
except ModuleNotFoundError as exc:
    print(exc)
"""
    assert _run(code) == 'telemetry needs OpenTelemetry: pip install "antiphon[otel]"\n'


@pytest.mark.slow
def test_the_runtime_imports_no_opentelemetry_and_telemetry_no_exporter() -> None:
    """What is not used costs nothing to import."""
    code = """
import sys, antiphon.runtime
print([name for name in sys.modules if name.startswith("opentelemetry")])
import pytest
import antiphon.telemetry
print([name for name in sys.modules if name.startswith(("opentelemetry.exporter", "requests", "google.protobuf"))])
"""
    assert _run(code) == "[]\n[]\n"
