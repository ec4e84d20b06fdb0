"""TGI's own client, in an environment of its own: it needs a huggingface_hub of before 1.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters import elsewhere

LIBRARY = "text-generation==0.7.0"
TESTS = Path(__file__).parent / "text_generation/in_its_environment.py"


@pytest.mark.services
@pytest.mark.timeout(600)
def test_its_own_tests() -> None:
    """The library, unchanged, against a server on loopback."""
    elsewhere.run_tests(TESTS, LIBRARY)
