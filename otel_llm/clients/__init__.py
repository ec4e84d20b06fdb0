"""What the adapters of client libraries share: the open call, its stream, its reply."""
