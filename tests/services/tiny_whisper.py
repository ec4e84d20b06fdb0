"""Save a small random Whisper with its own tokenizer; run with the vLLM environment's Python.

It hears clips of at most five seconds, so that vLLM cuts a longer one into several calls. What it
writes down are plain letters, never a special token.
"""

from __future__ import annotations

import sys
from pathlib import Path

END = "<|endoftext|>"
LETTERS = 256
PLAIN = 94
"""So many of them stand for themselves, the first; the others would be pieces of characters."""
CLIP_S = 5
FRAMES_A_SECOND = 50
"""What the encoder makes of a second: a hundred frames of sound, halved by its convolutions."""


def make_processor(target: Path) -> int:
    """Save the feature extractor and a byte-level tokenizer; returns the vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import WhisperFeatureExtractor, WhisperProcessor, WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, END])}
    bare = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    names = ["startoftranscript", *LANGUAGES, "translate", "transcribe", "startofprev", "prev"]
    names += ["nospeech", "notimestamps", *(f"{n / 50:.2f}" for n in range(50 * CLIP_S + 1))]
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{each}|>" for each in names]})
    extractor = WhisperFeatureExtractor(chunk_length=CLIP_S)
    WhisperProcessor(extractor, tokenizer).save_pretrained(target)
    return len(tokenizer)


def make_model(target: Path, vocabulary: int) -> None:
    """Save a seeded Whisper with one layer each way."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(7)
    config = WhisperConfig(
        vocab_size=vocabulary,
        d_model=128,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        max_source_positions=FRAMES_A_SECOND * CLIP_S,
        max_target_positions=448,
        bos_token_id=LETTERS,
        eos_token_id=LETTERS,
        pad_token_id=LETTERS,
        decoder_start_token_id=LETTERS + 1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        dtype="bfloat16",
    )
    model = WhisperForConditionalGeneration(config).to(torch.bfloat16)
    with torch.no_grad():
        model.proj_out.weight[PLAIN:] = 0  # of the plain letters one is always likelier
    model.save_pretrained(target)


if __name__ == "__main__":
    make_model(Path(sys.argv[1]), make_processor(Path(sys.argv[1])))
