"""Save a random LoRA adapter for the tiny model; run with the vLLM environment's Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

RANK = 8


def main(model: Path, target: Path) -> None:
    """An adapter of the attention's query projections."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    width = config["hidden_size"]
    torch.manual_seed(7)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, width, dtype=torch.bfloat16)
        tensors[f"{name}.lora_B.weight"] = torch.zeros(width, RANK, dtype=torch.bfloat16)
    target.mkdir(parents=True)
    save_file(tensors, target / "adapter_model.safetensors")
    adapter = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
        "base_model_name_or_path": str(model),
    }
    (target / "adapter_config.json").write_text(json.dumps(adapter))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
