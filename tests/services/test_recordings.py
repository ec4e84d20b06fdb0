"""Tests of what was recorded from llama.cpp and Ollama, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.services import record, recorded

LLAMA_CPP = (
    recorded.LLAMA_CPP
    | recorded.LLAMA_CPP_TOOLS
    | recorded.LLAMA_CPP_THINKING
    | recorded.LLAMA_CPP_EMBEDDINGS
)
OLLAMA = recorded.OLLAMA | recorded.OLLAMA_OVERLOADED
ALL = [
    *((record.LLAMA_CPP, name, *asked) for name, asked in LLAMA_CPP.items()),
    *((record.OLLAMA, name, *asked) for name, asked in OLLAMA.items()),
]


@pytest.mark.parametrize(("folder", "name", "path", "body"), ALL)
def test_a_recording_is_whole(folder: Path, name: str, path: str, body: Any) -> None:
    """Each request that is listed has its own answer, and the pieces add up to the body."""
    meta = json.loads((folder / f"{name}.json").read_text())
    assert {"path": path, "body": body} == meta["request"]
    assert record.load(name, folder).body == b"".join(record.reads(name, folder))


def test_recordings_name_no_place() -> None:
    """No recording has a path of the machine on which it was made."""
    for file in [*record.LLAMA_CPP.iterdir(), *record.OLLAMA.iterdir()]:
        text = file.read_text()
        assert not any(place in text for place in ("/root", "/home", "/tmp")), file.name
