"""Write a small random Llama as GGUF; run this with an environment that has `gguf`.

Every character of a prompt is a token, every token of an answer is text by itself, and
an answer never ends by itself: it has as many tokens as were asked for. Its text means nothing.
One model thinks without end. Another one calls a tool whenever it is given one, and ends then.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType, PoolingType, TokenType

LAYERS, WIDTH, HEADS, INNER = 4, 256, 4, 512
CONTEXT = 2048

EOS = 2
SPECIAL = ("<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
WORDS = ("the", "trace", "span", "waits", "queue", "prefill", "decode", "token", "time", "how")

CALL, CALL_END = "<tool_call>", "</tool_call>"

# A tool's call is written as the Hermes models do, which llama.cpp knows to read.
TEMPLATE = (
    "{%- if tools %}<|system|>{{ tools | tojson }}</s>{% endif %}"
    "{%- for message in messages %}"
    "<|{{ message['role'] }}|>"
    "{%- if message['role'] == 'tool' %}<tool_response>{% endif %}"
    "{{ message['content'] or '' }}"
    "{%- for call in message['tool_calls'] or [] %}"
    "<tool_call>{{ call['function'] | tojson }}</tool_call>"
    "{%- endfor %}"
    "</s>"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINK = (
    "{%- if add_generation_prompt %}"
    "{%- if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
    "{%- endif %}"
)


def tokens() -> list[tuple[str, TokenType]]:
    """Return the vocabulary: what controls, all bytes, printable characters, a few words."""
    unknown = [(SPECIAL[0], TokenType.UNKNOWN)]
    control = [(text, TokenType.CONTROL) for text in SPECIAL[1:]]
    single = [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    printable = string.ascii_letters + string.digits + string.punctuation
    # The tokenizer writes a space as this mark.
    plain = ["\u2581", *printable, *(f"\u2581{word}" for word in WORDS)]
    calls = [(text, TokenType.USER_DEFINED) for text in (CALL, CALL_END)]
    return [*unknown, *control, *calls, *single, *((text, TokenType.NORMAL) for text in plain)]


def add_tokenizer(writer: GGUFWriter) -> None:
    """Add the vocabulary as a SentencePiece model without merges."""
    texts, kinds = zip(*tokens(), strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    writer.add_token_scores([0.0] * len(texts))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def add_shape(writer: GGUFWriter) -> None:
    """Add what the model's size is."""
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens()))
    writer.add_file_type(LlamaFileType.MOSTLY_F16)


def add_weights(writer: GGUFWriter, calls: bool) -> None:
    """Add seeded weights that choose plain text, or calls of tools where these are allowed."""
    random = np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.normal(0.0, 0.1, (rows, columns)).astype(np.float16)

    texts, kinds = zip(*tokens(), strict=True)
    given, chosen = matrix(len(texts), WIDTH), matrix(len(texts), WIDTH)
    # The first number is the same for all tokens on the way in, and no layer adds to it; on
    # the way out it counts for or against a token. The second one marks the end of a call.
    given[:, :2] = 1.0, 0.0
    given[texts.index(CALL_END), 1] = 1.0
    chosen[:, 0] = [0.0 if kind == TokenType.NORMAL else -1000.0 for kind in kinds]
    if calls:
        chosen[[texts.index(CALL), texts.index(CALL_END)], 0] = 1000.0, 500.0
        chosen[EOS, 1] = 4000.0
    writer.add_tensor("token_embd.weight", given)
    writer.add_tensor("output.weight", chosen)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    for layer in range(LAYERS):
        added = {"attn_output": matrix(WIDTH, WIDTH), "ffn_down": matrix(WIDTH, INNER)}
        for weight in added.values():
            weight[:2] = 0.0
        inner = {name: matrix(WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v")}
        inner |= {name: matrix(INNER, WIDTH) for name in ("ffn_gate", "ffn_up")}
        norms = {name: np.ones(WIDTH, dtype=np.float32) for name in ("attn_norm", "ffn_norm")}
        for name, weight in (added | inner | norms).items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", weight)


def write(
    path: Path,
    template: str = TEMPLATE,
    *,
    calls: bool = False,
    pooling: PoolingType | None = None,
) -> None:
    """Write one model; with a pooling it is one for embeddings."""
    writer = GGUFWriter(path, "llama")
    add_shape(writer)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    add_tokenizer(writer)
    writer.add_chat_template(template)
    add_weights(writer, calls)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write(folder / "tiny.gguf")
    write(folder / "tiny-thinking.gguf", TEMPLATE + THINK)
    write(folder / "tiny-tools.gguf", calls=True)
    write(folder / "tiny-embed.gguf", pooling=PoolingType.MEAN)
