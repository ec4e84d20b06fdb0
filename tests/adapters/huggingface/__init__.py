"""huggingface_hub's clients, unchanged, against servers on loopback."""
