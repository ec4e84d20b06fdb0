"""Resource attributes of this process, found without asking anybody.

Everything is read from the environment and from a few small files; nothing is sent, and the
whole takes well under a millisecond. What cannot be known is absent. Arguments of the process
are never read: keys are passed in them.

`OTEL_LLM_RESOURCE_DETECTORS=none` switches it off. `otel_llm.export.resource` puts what the
user said on top, and keeps it right in a forked child.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

from otel_llm import semconv
from otel_llm.errors import ConfigurationError
from otel_llm.guard import guard

SWITCH = "OTEL_LLM_RESOURCE_DETECTORS"
LONGEST_FILE = 262_144
"""Most bytes that are read of a file."""
LONGEST_VALUE = 253
"""Most characters of a value from the environment, as for names in DNS and Kubernetes."""
Attributes = dict[str, str | int]

_ARCH = {
    "x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm32", "armv6l": "arm32", "i386": "x86",
    "i686": "x86", "ppc64le": "ppc64", "ppc": "ppc32",
}  # fmt: skip
_MACHINE = re.compile(r"[0-9a-f]{32}")
# /docker/ID, /kubepods/.../podUID/ID, docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope,
# libpod-ID.scope/container, ...slice:cri-containerd:ID
_IN_CGROUP = re.compile(r"(?<=[/:-])[0-9a-f]{64}(?=[/.:]|$)")
# Docker and nerdctl mount files of the container's own directory; CRI-O and podman do so for
# .containerenv. Files below /sandboxes/ belong to the pod's pause container.
_IN_MOUNT = re.compile(r"/(?:containers|etchosts)/(?:[^/]+/)?([0-9a-f]{64})/")
_IN_CONTAINERENV = re.compile(r"/overlay-containers/([0-9a-f]{64})/")
_POD_UID = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_POD_IN_CGROUP = re.compile(rf"[/-]pod{_POD_UID}(?=[/.:]|$)")
_POD_IN_MOUNT = re.compile(rf"/pods/{_POD_UID}/")
# A Deployment's pod is NAME-HASH-SUFFIX. The hash is a number written with the characters 4 to 9
# and b, c, d, f; one without a letter would be taken for the time in a CronJob's pod.
_DEPLOYED = re.compile(
    r"(.+)-(?=[4-9]*[bcdf])[4-9bcdf]{6,10}-[bcdfghjklmnpqrstvwxz2456789]{5}", re.DOTALL
)
_SERVICE_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
_VARIABLES = {
    semconv.POD_NAME: ("K8S_POD_NAME", "POD_NAME", "MY_POD_NAME", "KUBERNETES_POD_NAME"),
    semconv.POD_UID: ("K8S_POD_UID", "POD_UID", "MY_POD_UID", "KUBERNETES_POD_UID"),
    semconv.NAMESPACE_NAME: (
        "K8S_NAMESPACE_NAME", "K8S_NAMESPACE", "POD_NAMESPACE", "K8S_POD_NAMESPACE",
        "MY_POD_NAMESPACE", "KUBERNETES_NAMESPACE",
    ),
    semconv.NODE_NAME: (
        "K8S_NODE_NAME", "NODE_NAME", "MY_NODE_NAME", "KUBERNETES_NODE_NAME",
    ),
    semconv.DEPLOYMENT_NAME: ("K8S_DEPLOYMENT_NAME", "DEPLOYMENT_NAME"),
}  # fmt: skip
_instances: dict[int, str] = {}


def detected(environ: Mapping[str, str], root: Path = Path("/")) -> Attributes:
    """What is known of this process, its host, its container and its pod.

    Args:
        environ: The environment; `OTEL_RESOURCE_ATTRIBUTES` is not looked at.
        root: Where `/proc`, `/etc` and `/var` are.

    Raises:
        ConfigurationError: `OTEL_LLM_RESOURCE_DETECTORS` is neither `all` nor `none`.
    """
    wanted = environ.get(SWITCH, "").strip().lower()
    if wanted not in {"", "all", "none"}:
        raise ConfigurationError(f"{SWITCH} is {environ[SWITCH]!r}; it must be all or none")
    found: Attributes = {}
    if wanted == "none":
        return found
    parts: tuple[Callable[[], Mapping[str, str | int | None]], ...] = (
        of_process,
        _runtime,
        _host,
        lambda: _place(environ, root),
    )
    for part in parts:
        with guard("resources"):
            found.update({name: value for name, value in part().items() if value})
    return found


def of_process() -> Attributes:
    """What differs between a process and the one it was forked from.

    The instance id is random, and the same whenever this is called in one process.
    """
    pid = os.getpid()
    return {
        semconv.SERVICE_INSTANCE: _instances.setdefault(pid, str(uuid4())),
        semconv.PROCESS_PID: pid,
    }


def _runtime() -> dict[str, str | int | None]:
    return {
        semconv.PROCESS_EXECUTABLE: Path(sys.executable or "").name,
        semconv.RUNTIME_NAME: sys.implementation.name,
        semconv.RUNTIME_VERSION: platform.python_version(),
    }


def _host() -> dict[str, str | int | None]:
    machine, system = platform.machine().lower(), platform.system().lower()
    return {
        semconv.HOST_NAME: socket.gethostname(),
        semconv.HOST_ARCH: _ARCH.get(machine, machine),
        semconv.OS_TYPE: "solaris" if system == "sunos" else system,
    }


def _place(environ: Mapping[str, str], root: Path) -> dict[str, str | int | None]:
    """The container and the pod; the machine only outside of both, where its id is its own."""
    cgroup, mounts = _text(root / "proc/self/cgroup"), _text(root / "proc/self/mountinfo")
    container, uid = container_id(cgroup, mounts), pod_uid(cgroup, mounts)
    namespace = _plain(_text(root / _SERVICE_ACCOUNT))
    if not (environ.get("KUBERNETES_SERVICE_HOST") or namespace or uid):
        return {semconv.CONTAINER_ID: container} if container else {semconv.HOST_ID: _machine(root)}
    found = {name: _first(environ, names) for name, names in _VARIABLES.items()}
    found[semconv.POD_UID] = found[semconv.POD_UID] or uid
    found[semconv.NAMESPACE_NAME] = found[semconv.NAMESPACE_NAME] or namespace
    if not found[semconv.POD_NAME] and "(host network)" not in _text(root / "etc/hosts"):
        found[semconv.POD_NAME] = _first(environ, ("HOSTNAME",))
    if not found[semconv.DEPLOYMENT_NAME]:
        found[semconv.DEPLOYMENT_NAME] = deployment(found[semconv.POD_NAME] or "")
    return {semconv.CONTAINER_ID: container, **found}


def container_id(cgroup: str, mounts: str) -> str | None:
    """The container's id from `/proc/self/cgroup` (v1) or `/proc/self/mountinfo` (v2).

    Formats of docker, containerd, CRI-O and podman. None outside a container, and under
    containerd with a cgroup namespace of its own, where nothing in the container tells.
    """
    ids: list[str] = [id_ for line in cgroup.splitlines() for id_ in _IN_CGROUP.findall(line)[-1:]]
    if ids:
        return ids[0]
    for source, target in _mounts(mounts):
        if target.startswith("/sys/fs/cgroup"):
            ids += _IN_CGROUP.findall(source)[-1:]
        elif target in {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}:
            ids += _IN_MOUNT.findall(source)
        elif target in {"/run/.containerenv", "/var/run/.containerenv"}:
            ids += _IN_CONTAINERENV.findall(source)
    return ids[0] if ids else None


def pod_uid(cgroup: str, mounts: str) -> str | None:
    """The pod's uid from the same two files; None outside Kubernetes."""
    found = _POD_IN_CGROUP.search(cgroup)
    if found is None:
        for source, target in _mounts(mounts):
            pattern = _POD_IN_CGROUP if target.startswith("/sys/fs/cgroup") else _POD_IN_MOUNT
            if found := pattern.search(source):
                break
    return found.group(1).replace("_", "-") if found else None


def deployment(pod: str) -> str | None:
    """The Deployment that made a pod of this name; None if it does not look like one's."""
    found = _DEPLOYED.fullmatch(pod)
    return found[1] if found else None


def _mounts(mountinfo: str) -> list[tuple[str, str]]:
    """Source and target of each mount: the fourth and fifth field of a line."""
    lines = (line.split(" ", 5) for line in mountinfo.splitlines())
    return [(fields[3], fields[4]) for fields in lines if len(fields) > 5]


def _machine(root: Path) -> str | None:
    for name in ("etc/machine-id", "var/lib/dbus/machine-id"):
        text = _text(root / name).strip()
        if _MACHINE.fullmatch(text):
            return text
    return None


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := _plain(environ.get(name, "")))), None)


def _plain(text: str) -> str | None:
    """*text* if it can be a name."""
    text = text.strip()
    return text if text.isprintable() and 0 < len(text) <= LONGEST_VALUE else None


def _text(path: Path) -> str:
    """The beginning of a file; empty if it cannot be read or is no plain file."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(LONGEST_FILE).decode(errors="replace")
    except (OSError, ValueError):
        return ""
