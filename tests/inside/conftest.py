"""The embedded classifier."""

import pytest

import wherefrom


@pytest.fixture(scope="session")
def sentiment():
    return wherefrom.load("sentiment")
