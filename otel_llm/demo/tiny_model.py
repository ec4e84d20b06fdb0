"""A tiny Llama's configuration and tokenizer, for a vLLM that fills in random weights.

Every word of the load's prompts is one token, every other printable character is one, too; so is
each piece of what is generated. It means nothing. Made of the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters, digits, punctuation
from typing import Any

from otel_llm.simulator.workload import WORDS

MAX_MODEL_LEN = 4096
SPECIAL = ("<unk>", "<s>", "</s>")
SPACE = "\u0120"
"""What a space is in a byte-level vocabulary."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write_tiny_model(folder: Path) -> None:
    """Write the model's files into *folder*; start vLLM on it with `--load-format dummy`."""
    tokenizer = _tokenizer()
    size = len(tokenizer["model"]["vocab"])
    files = {
        "config.json": _config(size),
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True)),
            "chat_template": TEMPLATE,
            "model_max_length": MAX_MODEL_LEN,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _config(vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _tokenizer() -> dict[str, Any]:
    """Byte-level BPE that joins each word from its left, and knows printable ASCII only."""
    merges = list(dict.fromkeys(pair for word in WORDS for pair in _merges(SPACE + word)))
    letters = [SPACE, "\u010a", *ascii_letters, *digits, *punctuation]
    tokens = [*SPECIAL, *letters, *(left + right for left, right in merges)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, token in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": True},
        "post_processor": None,
        "decoder": level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "unk_token": SPECIAL[0],
            "vocab": {token: number for number, token in enumerate(dict.fromkeys(tokens))},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def _merges(word: str) -> Iterator[tuple[str, str]]:
    return ((word[:end], word[end]) for end in range(1, len(word)))
