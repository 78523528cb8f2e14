"""What holds for every test."""

from __future__ import annotations

import hypothesis
import pytest

from engine.fetch_model import ensure_model

# Examples differ in cost with the machine's load, and no test here is a test of time.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the first test that needs the real model, and its fixtures: the model is fetched, if it is not there."""
    if item.get_closest_marker("model") is not None:
        ensure_model()
