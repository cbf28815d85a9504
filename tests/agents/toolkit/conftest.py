"""Most tests of toolkits run agents without `LedgerDurability`: what counts is what the toolkit itself records."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::antiphon.agents.DurabilityWarning"))
