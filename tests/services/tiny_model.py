"""Save a small random Llama with its own tokenizer; run this with the vLLM environment's Python.

It has real shapes and a real tokenizer, and its output means nothing. No test may
expect an end of text, for random weights hardly ever choose the one token for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

BOS, EOS = "<s>", "</s>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
MAX_POSITION = 8192

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

SAMPLE = (
    "The quick brown fox jumps over the lazy dog.",
    "A trace has spans, a span has attributes and events.",
    "Tokens wait in a queue, then prefill, then decode, one after another.",
    "How long did the request take, and where did the time go?",
)
"""Text from which the tokenizer learns a few merges; every other text falls back to bytes."""


def make_tokenizer(target: Path) -> int:
    """Save a byte-level BPE tokenizer with a chat template, and return its vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[BOS, EOS, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITION,
    ).save_pretrained(target)
    return tokenizer.get_vocab_size()


def make_model(target: Path, vocabulary: int) -> None:
    """Save a seeded Llama with four layers, and with just the tokenizer's vocabulary."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_POSITION,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target)


if __name__ == "__main__":
    make_model(Path(sys.argv[1]), make_tokenizer(Path(sys.argv[1])))
