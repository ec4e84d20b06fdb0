"""The doctor: its checks, what it reads, what it asks of the network, and the command."""
