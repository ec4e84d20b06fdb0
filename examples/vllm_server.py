"""Start vLLM's OpenAI server with telemetry set up in code instead of in the environment.

Run it with `python examples/vllm_server.py --otlp http://localhost:4318 --model MODEL`; what is
not ours goes to vLLM's server. The environment does the same without this file, and is the only
way with more than one API server process, since each of them starts afresh.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from importlib.util import find_spec

import otel_llm


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description="vLLM's server, with its request spans and metrics sent to an OTLP receiver.",
        epilog="All other arguments are those of vLLM's server.",
    )
    parser.add_argument("--otlp", default="http://localhost:4318", help="OTLP/HTTP base URL")
    parser.add_argument("--service", default="vllm", help="service.name of the telemetry")
    ours, serve = parser.parse_known_args()

    if find_spec("vllm") is None:
        sys.exit("vLLM is not installed in this environment")
    otel_llm.configure(endpoint=ours.otlp, service_name=ours.service, engines=["vllm"])
    sys.argv = ["api_server", *serve]
    # Unlike the `vllm` command this works whatever the distribution is called.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


if __name__ == "__main__":
    main()
