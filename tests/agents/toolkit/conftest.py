"""Most tests of toolkits run agents without `LedgerDurability`: what counts is what the toolkit itself records."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.filterwarnings("ignore::antiphon.durable.DurabilityWarning"))
