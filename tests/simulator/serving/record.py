"""Record what real servers answer to `asked.py`: `python -m tests.simulator.serving.record`."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.services import record
from tests.services.ollama import Ollama
from tests.services.vllm import Vllm
from tests.simulator.serving import asked

_RECORDINGS = Path(__file__).with_name("recordings")
VLLM = _RECORDINGS / record.FOLDER.name
OLLAMA = _RECORDINGS / record.OLLAMA.name
_VLLMS = (
    (asked.VLLM, ["--enable-prompt-tokens-details"]),
    (asked.VLLM_METRICS, [record.PER_REQUEST_METRICS]),
    (asked.VLLM_FULL, ["--max-num-queued-reqs", "0"]),
)


def _without_place(name: str) -> None:
    """Call the model's folder by the model's name, since no recording has paths of a machine."""
    body = VLLM / f"{name}.body"
    about = VLLM / f"{name}.json"
    before = body.read_text()
    after = re.sub(r'"root":"[^"]*"', '"root":"tiny"', before)
    body.write_text(after)
    about.write_text(about.read_text().replace(str(len(before)), str(len(after))))


def main() -> None:
    """Record everything."""
    with tempfile.TemporaryDirectory() as workdir:
        with Ollama.start(Path(workdir)) as ollama:
            record.record(OLLAMA, ollama.url, asked.OLLAMA)
        for requests, args in _VLLMS:
            with Vllm.start(Path(workdir), args=args) as vllm:
                record.record(VLLM, vllm.url, requests)
        _without_place("models")


if __name__ == "__main__":
    main()
