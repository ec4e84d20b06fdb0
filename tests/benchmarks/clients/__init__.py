"""What the instrumentation of clients costs, beside its peers."""
