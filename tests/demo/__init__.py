"""The demo: its receiver, its processes, and the command as its users run it."""
