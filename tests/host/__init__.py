"""The machine around a request."""
