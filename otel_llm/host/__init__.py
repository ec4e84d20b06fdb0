"""The machine around a request: what the operating system and the GPU did while it was open."""
