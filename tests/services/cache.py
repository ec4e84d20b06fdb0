"""A cache of built servers, kept outside the source tree."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_root() -> Path:
    """Return the directory which holds everything that was built."""
    configured = os.environ.get("OTEL_LLM_TEST_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "otel-llm-services"


def cached(name: str, version: str, build: Callable[[Path], None]) -> Path:
    """Return the directory of one build, and build it first when it is missing.

    A marker file says that a build is whole. Building elsewhere and renaming
    would be simpler, but virtual environments contain their own path.
    """
    target = cache_root() / f"{name}-{version}"
    marker = target / ".complete"
    if marker.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock")):
        if not marker.exists():
            _build(target, build)
            marker.touch()
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    """Build into an empty directory, and leave nothing behind on failure."""
    # A killed process cannot clean up, so the next one does.
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    try:
        build(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
