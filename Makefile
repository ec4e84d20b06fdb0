.PHONY: setup test lint format services ci bench nightly

setup:
	bash .ci/setup

test:
	.venv/bin/python -m pytest

lint:
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy

format:
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .

services:
	.venv/bin/python -m tests.services build
	.venv/bin/python -m pytest -m "services and not alone" -n 2 --dist loadfile --no-loadscope-reorder

ci:
	bash .ci/run

bench:
	bash .ci/bench

nightly:
	bash .ci/nightly
