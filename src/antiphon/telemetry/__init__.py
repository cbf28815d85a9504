"""Traces and metrics of a system, by OpenTelemetry and its conventions for generative AI. Needs the extra `otel`."""

try:
    from antiphon.telemetry._telemetry import CountOnce, Telemetry, configure
except ModuleNotFoundError as exc:
    if str(exc.name).partition(".")[0] != "opentelemetry":
        raise
    _MESSAGE = 'telemetry needs OpenTelemetry: pip install "antiphon[otel]"'
    raise ModuleNotFoundError(_MESSAGE, name=exc.name) from exc

__all__ = ["CountOnce", "Telemetry", "configure"]
