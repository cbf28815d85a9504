"""At the end: how often each fault was tried, with which result."""

from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show what the tests of faults have recorded, as a table."""
    reports = [
        report for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "user_properties")
    ]
    rows = sorted({(str(name), str(what)) for report in reports for name, what in report.user_properties}, key=_by_number)
    if rows:
        terminalreporter.section("faults")
        for name, what in rows:
            terminalreporter.write_line(f"{name:>4}  {what}")


def _by_number(row: tuple[str, str]) -> tuple[str, int, str]:
    return row[0][:1], int(row[0][1:] or 0), row[1]
