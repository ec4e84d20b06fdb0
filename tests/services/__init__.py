"""Real servers for tests: each is built once into a cache and started per test session."""
