"""The catalogue as it is bundled: whoever runs the tests may have devices of their own."""

import pytest


@pytest.fixture(autouse=True)
def no_own_devices(monkeypatch):
    monkeypatch.setenv("SERVETUNE_DEVICES", "")
