"""The correctness of every peer beside ours, one table per client.

    python -m tests.benchmarks.clients.check_table [NAME ...]

Exit status 1 when ours is wrong anywhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.benchmarks.clients import environments
from tests.benchmarks.clients.check import everything
from tests.benchmarks.clients.exits import EXITS, exits
from tests.benchmarks.clients.layers import LIBRARIES
from tests.benchmarks.clients.peers import PEERS, ROWS
from tests.benchmarks.clients.server import serving
from tests.benchmarks.clients.subject import Subject
from tests.benchmarks.report import ROOT

ALIKE_MS = 1.0
"""How far a reported time to the first token may be from the consumer's."""
ERRORS = ("error", "cancelled")


def main() -> int:
    """Check each in its own environment, and print the tables."""
    names = sys.argv[1:] or ["ours", *PEERS]
    if names[0] == "--one":
        return one(*names[1:])
    wrong = 0
    for library in LIBRARIES:
        found = {name: asked(name, library) for name in names if library in ROWS[name].libraries}
        rows = {name: cells(of, library, ROWS[name].spans) for name, of in found.items()}
        print(f"\n## {library}\n\n| check | {' | '.join(rows)} |\n|---{'|---' * len(rows)}|")
        for check in next(iter(rows.values())):
            print(f"| {check} | {' | '.join(row[check] for row in rows.values())} |")
        if "ours" in found:
            faults = wrongs(found["ours"], library)
            wrong += len(faults)
            print("", *(f"WRONG: ours, {library}: {fault}" for fault in faults), sep="\n")
    return 1 if wrong else 0


def one(name: str, library: str) -> int:
    """Check one here, and write what was seen to standard output."""
    output, sys.stdout = sys.stdout, sys.stderr
    row = ROWS[name]
    peer = row.switch_on(True)
    with serving() as server, Subject(peer, library, server) as subject:
        found = everything(subject, row.spans)
    print(json.dumps(found), file=output, flush=True)
    return 0


def asked(name: str, library: str) -> dict[str, Any]:
    """What one is like, seen in its environment."""
    python = environments.python(ROWS[name].environment)
    command = [python, "-m", "tests.benchmarks.clients.check_table", "--one", name, library]
    variables = {key: v for key, v in os.environ.items() if not key.startswith(("OTEL_", "PYTHON"))}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables, timeout=120
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-1500:]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def cells(found: dict[str, Any], library: str, spans: int) -> dict[str, str]:
    """One column of the table."""
    column = {
        "first token, ms: reported / true": _times(found["timed"]),
        "late headers: reported / true": _times(found["late"]),
        "span / stream, ms": f"{max(found['timed']['span_ms'], default=0):.0f}"
        f" / {found['timed']['total_ms']:.0f}",
        "tokens": _yes(found["timed"]["tokens"]),
        "tokens that nobody counted": _yes(found["guessed tokens"]),
    }
    column |= {
        name: _exit(found["exits"][name], 1 if name == "HTTP 500" else spans)
        for name in exits(library)
    }
    whole = found["context kept"] and all(e["unchanged"] for e in found["exits"].values())
    return column | {
        "caller's span left alone": _yes(whole),
        "type kept": _yes(found["type kept"]),
        "traceparent sent": _yes(found["traceparent sent"]),
    }


def wrongs(found: dict[str, Any], library: str) -> list[str]:
    """What is not as ours must be."""
    faults = [name for name in exits(library) if not _right(found["exits"][name], EXITS[name][1])]
    for name in ("timed", "late"):
        times = found[name]
        if not times["reported"] or any(
            abs(each - times["first_ms"]) > ALIKE_MS for each in times["reported"]
        ):
            faults.append(f"first token, {name}")
    faults += [
        name for name in ("context kept", "type kept", "traceparent sent") if not found[name]
    ]
    if found["guessed tokens"] or not found["timed"]["tokens"]:
        faults.append("tokens")
    return faults


def _right(seen: dict[str, Any], outcome: str) -> bool:
    """Whether one span ended at once, once, with that outcome, and the caller noticed nothing."""
    status = "ERROR" if outcome in ERRORS else "UNSET"
    return (
        (seen["ended"], seen["later"]) == (1, 1)
        and seen["outcomes"] == [outcome]
        and seen["statuses"] == [status]
        and seen["unchanged"]
        and not seen["logged"]
    )


def _times(seen: dict[str, Any]) -> str:
    reported = ", ".join(f"{each:.1f}" for each in dict.fromkeys(seen["reported"])) or "none"
    return f"{reported} / {seen['first_ms']:.1f}"


def _exit(seen: dict[str, Any], spans: int) -> str:
    said = [str(outcome) for outcome in seen["outcomes"] if outcome] or seen["statuses"]
    if seen["ended"] >= spans:
        return "/".join(dict.fromkeys(said))
    return "late " + "/".join(dict.fromkeys(said)) if seen["later"] >= spans else "NEVER"


def _yes(value: object) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    sys.exit(main())
