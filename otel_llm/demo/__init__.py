"""`otel-llm demo`: an engine under load, traced on both sides, and where its time went.

Real processes and sockets, and the library's own way from a span to its receiver; only the engine
is simulated, unless a real one is asked for.
"""
