"""The earlier releases of huggingface_hub: on requests and aiohttp (0.x), and on httpx (1.x).

The release that is installed here is tested by the files in `huggingface`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters import elsewhere

TESTS = Path(__file__).parent / "huggingface"


@pytest.mark.services
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["0.28.1", "0.36.2", "1.4.0"])
def test_the_same_tests(version: str) -> None:
    """Everything holds for them, too."""
    elsewhere.run_tests(TESTS, f"huggingface_hub=={version}", "aiohttp", "numpy")
