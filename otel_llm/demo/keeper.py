"""Runs a server for as long as its parent lives: `python -m otel_llm.demo.keeper COMMAND...`.

Standard input is a pipe that the parent holds. When it ends, because the parent closed it or is
gone in whatever way, the server is asked to end and then its whole process group is killed, this
process with it. Standard library only: it starts at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

GRACE_S = 5.0
"""How long a server may take to end by itself."""


def main(command: list[str]) -> None:
    """Run *command* until it ends or standard input does; does not return."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own command
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    threading.Thread(target=_end_with_parent, args=(server,), daemon=True).start()
    status = server.wait()
    sys.stderr.write(f"the server ended with exit status {status}\n")
    sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)  # what it has left behind


def _end_with_parent(server: subprocess.Popen[bytes]) -> None:
    sys.stdin.buffer.read()
    server.terminate()
    try:
        server.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
