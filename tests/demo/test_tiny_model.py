"""The files of the tiny model; that vLLM serves it is shown with a real one."""

from __future__ import annotations

import json
from pathlib import Path

from otel_llm.demo.tiny_model import MAX_MODEL_LEN, SPACE, write_tiny_model
from otel_llm.simulator.workload import WORDS


def test_every_word_of_the_load_is_one_token(tmp_path: Path) -> None:
    """The vocabulary has it, and merges lead to it."""
    write_tiny_model(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    merged = {"".join(each.split(" ")) for each in tokenizer["model"]["merges"]}
    assert {SPACE + word for word in WORDS} <= merged <= set(vocabulary)


def test_the_vocabulary_has_no_hole(tmp_path: Path) -> None:
    """Whatever is drawn at random is a token, and the model has just as many."""
    write_tiny_model(tmp_path)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert config["max_position_embeddings"] == MAX_MODEL_LEN
