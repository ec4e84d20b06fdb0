"""The property tests with many more examples each than the gate takes.

python -m tests.benchmarks.properties
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.report import ROOT, Bound, write

EXAMPLES = 2_000


def main() -> int:
    """Run every test that hypothesis feeds, and keep how many passed."""
    files = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "from hypothesis import" in Path(path).read_text()
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--timeout", "3000", *files],
        cwd=ROOT,
        env={**os.environ, "OTEL_LLM_TEST_PROFILE": "nightly"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-2000:])
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed)", done.stdout)}
    result = {"examples_per_property": EXAMPLES, "files": files, **counts}
    return write("properties", result, [Bound("failed", float(done.returncode != 0), 0)])


if __name__ == "__main__":
    sys.exit(main())
