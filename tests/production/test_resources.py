"""What is found about the process, its host, its container and its pod."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from otel_llm import ConfigurationError
from otel_llm.export.resource import ProcessResource, described
from otel_llm.resources import (
    LONGEST_FILE,
    LONGEST_VALUE,
    container_id,
    deployment,
    detected,
    of_process,
    pod_uid,
)

ID = "0123456789abcdef" * 4
OTHER_ID = "f" * 64
UID = "3f8a6c1e-52d0-4b7e-9c5f-0a1b2c3d4e5f"
UNDERSCORED = UID.replace("-", "_")
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"


def mount(source: str, target: str) -> str:
    """One line of `/proc/self/mountinfo`."""
    return f"36 35 98:0 {source} {target} rw,noatime master:1 - ext4 /dev/root rw\n"


def at(root: Path, files: dict[str, str | bytes]) -> Path:
    """*root* with files in it."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


class TestContainer:
    """The id of the container."""

    @pytest.mark.parametrize(
        "path",
        [
            f"4:memory:/docker/{ID}",
            f"0::/system.slice/docker-{ID}.scope",
            f"11:cpu:/kubepods/besteffort/pod{UID}/{ID}",
            f"0::{SLICE}/cri-containerd-{ID}.scope",
            f"5:cpuset:{SLICE.removeprefix('/')}:cri-containerd:{ID}",
            f"0::{SLICE}/crio-{ID}.scope",
            f"0::/machine.slice/libpod-{ID}.scope/container",
            f"2:pids:/libpod_parent/libpod-{ID}",
            f"3:pids:/docker/{OTHER_ID}/docker/{ID}",
        ],
    )
    def test_in_cgroup(self, path: str) -> None:
        """Version 1, and version 2 without a namespace of its own; the innermost one counts."""
        assert container_id(f"9:name=systemd:/\n{path}\n", "") == ID

    @pytest.mark.parametrize(
        ("source", "target"),
        [
            (f"/var/lib/docker/containers/{ID}/hostname", "/etc/hostname"),
            (f"/docker/containers/{ID}/resolv.conf", "/etc/resolv.conf"),
            (f"/var/lib/nerdctl/1935db59/etchosts/default/{ID}/hosts", "/etc/hosts"),
            (f"/var/lib/nerdctl/1935db59/containers/default/{ID}/hostname", "/etc/hostname"),
            (f"{SLICE}/cri-containerd-{ID}.scope", "/sys/fs/cgroup"),
            (f"/kubepods/burstable/pod{UID}/{ID}", "/sys/fs/cgroup/memory"),
            (f"/containers/overlay-containers/{ID}/userdata/.containerenv", "/run/.containerenv"),
        ],
    )
    def test_in_mountinfo(self, source: str, target: str) -> None:
        """Version 2, where the cgroup file tells nothing."""
        assert container_id("0::/\n", mount("/", "/") + mount(source, target)) == ID

    @pytest.mark.parametrize(
        ("source", "target"),
        [
            (f"/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/hosts", "/etc/hosts"),
            (f"/run/containers/storage/overlay-containers/{ID}/userdata/hostname", "/etc/hostname"),
            (f"/var/lib/docker/containers/{ID}/hostname", "/mnt/backup"),
            (f"/var/lib/docker/volumes/{ID}/_data", "/data"),
        ],
    )
    def test_not_of_another_container(self, source: str, target: str) -> None:
        """Files of the pod's pause container, and mounts that are data, are not taken."""
        assert container_id("0::/\n", mount(source, target)) is None

    def test_none(self) -> None:
        """Outside a container there is none."""
        assert container_id("0::/user.slice/session-2.scope\n", mount("/", "/")) is None


class TestPod:
    """What Kubernetes tells without its API server."""

    @pytest.mark.parametrize(
        ("cgroup", "mounts"),
        [
            (f"11:cpu:/kubepods/besteffort/pod{UID}/{ID}", ""),
            (f"0::{SLICE}/cri-containerd-{ID}.scope", ""),
            ("0::/", mount(f"/var/lib/kubelet/pods/{UID}/etc-hosts", "/etc/hosts")),
            ("0::/", mount(f"{SLICE}/crio-{ID}.scope", "/sys/fs/cgroup")),
        ],
    )
    def test_uid_from_files(self, cgroup: str, mounts: str) -> None:
        """From the cgroup's path, or from what the kubelet mounts."""
        assert pod_uid(cgroup, mounts) == UID

    def test_uid_of_a_static_pod(self) -> None:
        """32 digits without dashes."""
        assert pod_uid(f"4:cpu:/kubepods/pod{'a' * 32}/{ID}", "") == "a" * 32

    @pytest.mark.parametrize(
        ("variable", "attribute"),
        [
            ("POD_NAME", "k8s.pod.name"),
            ("MY_POD_NAME", "k8s.pod.name"),
            ("POD_UID", "k8s.pod.uid"),
            ("POD_NAMESPACE", "k8s.namespace.name"),
            ("NODE_NAME", "k8s.node.name"),
            ("K8S_NODE_NAME", "k8s.node.name"),
            ("K8S_DEPLOYMENT_NAME", "k8s.deployment.name"),
        ],
    )
    def test_downward_variables(self, variable: str, attribute: str, tmp_path: Path) -> None:
        """Names that manifests use; a host name is no better than what they say."""
        environ = IN_CLUSTER | {variable: " here ", "HOSTNAME": "somewhere"}
        assert detected(environ, tmp_path)[attribute] == "here"

    def test_only_in_a_cluster(self, tmp_path: Path) -> None:
        """Elsewhere such variables mean something else, as Jenkins' NODE_NAME does."""
        found = detected({"NODE_NAME": "a", "POD_NAME": "b", "HOSTNAME": "c"}, tmp_path)
        assert [name for name in found if name.startswith("k8s.")] == []

    def test_namespace_file(self, tmp_path: Path) -> None:
        """The service account's."""
        path = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
        assert detected({}, at(tmp_path, {path: "prod\n"}))["k8s.namespace.name"] == "prod"

    def test_host_name_is_the_pods(self, tmp_path: Path) -> None:
        """Which also tells the Deployment."""
        found = detected(IN_CLUSTER | {"HOSTNAME": "llm-7d4b9c8f6d-x2x9z"}, tmp_path)
        assert (
            found["k8s.pod.name"],
            found["k8s.deployment.name"],
        ) == ("llm-7d4b9c8f6d-x2x9z", "llm")

    def test_host_network(self, tmp_path: Path) -> None:
        """There the host name is the node's; the kubelet says so in /etc/hosts."""
        hosts = "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n"
        found = detected(IN_CLUSTER | {"HOSTNAME": "node-1"}, at(tmp_path, {"etc/hosts": hosts}))
        assert "k8s.pod.name" not in found

    @pytest.mark.parametrize(
        "pod", ["llm-0", "llm", "", "nightly-45678945-x2x9z", "train-x2x9z", "llm-7d4b9c8f6d-xaxez"]
    )
    def test_not_of_a_deployment(self, pod: str) -> None:
        """Pods of a StatefulSet, a CronJob or a Job, and others."""
        assert deployment(pod) is None


class TestProcess:
    """The process and its host."""

    def test_this_process(self, tmp_path: Path) -> None:
        """Who it is, and never its arguments."""
        found = detected({}, tmp_path)
        assert os.getpid() == found["process.pid"]
        assert Path(sys.executable).name == found["process.executable.name"]
        assert ("cpython", os.uname().nodename) == (
            found["process.runtime.name"],
            found["host.name"],
        )
        assert {"host.arch", "os.type", "process.runtime.version"} <= set(found)
        assert [name for name in found if "command" in name] == []

    def test_instance_id(self) -> None:
        """Random, and the same for everybody who asks in one process."""
        first = of_process()["service.instance.id"]
        assert UUID(str(first)).version == 4
        assert first == of_process()["service.instance.id"]

    @pytest.mark.parametrize("name", ["etc/machine-id", "var/lib/dbus/machine-id"])
    def test_machine_id(self, name: str, tmp_path: Path) -> None:
        """As systemd writes it."""
        assert detected({}, at(tmp_path, {name: "ab" * 16 + "\n"}))["host.id"] == "ab" * 16

    @pytest.mark.parametrize("text", ["", "uninitialized\n", "AB" * 16, "ab" * 17])
    def test_no_machine_id(self, text: str, tmp_path: Path) -> None:
        """Absent until it is one."""
        assert "host.id" not in detected({}, at(tmp_path, {"etc/machine-id": text}))

    def test_machine_id_of_an_image(self, tmp_path: Path) -> None:
        """Absent in a container: every container of an image has the same one."""
        files: dict[str, str | bytes] = {
            "etc/machine-id": "ab" * 16,
            "proc/self/cgroup": f"0::/docker/{ID}\n",
        }
        found = detected({}, at(tmp_path, files))
        assert ("host.id" in found, ID) == (False, found["container.id"])

    def test_switched_off(self) -> None:
        """One switch for everything."""
        assert detected({"OTEL_LLM_RESOURCE_DETECTORS": "none"}) == {}

    def test_wrong_switch(self) -> None:
        """Told with its name."""
        with pytest.raises(ConfigurationError, match="OTEL_LLM_RESOURCE_DETECTORS is 'some'"):
            detected({"OTEL_LLM_RESOURCE_DETECTORS": "some"})


class TestHostile:
    """Whatever stands there, something else is found and nothing raised."""

    @given(st.text(), st.text())
    def test_any_text(self, cgroup: str, mounts: str) -> None:
        """Parsers take any text."""
        for found in (container_id(cgroup, mounts), pod_uid(cgroup, mounts), deployment(cgroup)):
            assert found is None or isinstance(found, str)

    @given(
        st.lists(
            st.sampled_from(["/", "-", ":", " ", "\n", ID, UID, "pod", "containers", "a", ".", "0"])
        )
    )
    def test_text_that_is_nearly_right(self, pieces: list[str]) -> None:
        """What is found has the form of an id."""
        text = "".join(pieces)
        container, uid = container_id(text, text), pod_uid(text, text)
        assert container is None or len(container) == 64
        assert uid is None or len(uid) in {32, 36}

    def test_odd_files(self, tmp_path: Path) -> None:
        """A folder, a pipe, a loop, bytes that are no text."""
        at(tmp_path, {"etc/machine-id": b"\xff\xfe" * 99, "proc/self/mountinfo/x": "", "etc/a": ""})
        os.mkfifo(tmp_path / "proc/self/cgroup")
        (tmp_path / "etc/hosts").symlink_to(tmp_path / "etc/hosts")
        found = detected(IN_CLUSTER | {"HOSTNAME": "a"}, tmp_path)
        assert (found["k8s.pod.name"], "host.id" in found) == ("a", False)

    def test_a_huge_file(self, tmp_path: Path) -> None:
        """Only its beginning is read."""
        text = "x" * LONGEST_FILE + f"\n0::/docker/{ID}\n"
        assert "container.id" not in detected({}, at(tmp_path, {"proc/self/cgroup": text}))

    @pytest.mark.parametrize("value", ["", " ", "a\nb", "\udcff", "x" * (LONGEST_VALUE + 1)])
    def test_odd_variables(self, value: str, tmp_path: Path) -> None:
        """What can be no name is absent."""
        assert "k8s.pod.name" not in detected(IN_CLUSTER | {"POD_NAME": value}, tmp_path)


class TestResource:
    """The SDK's resource made from it."""

    def test_the_user_wins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Arguments over variables over what is found."""
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=mine,os.type=other,a=b")
        attributes = described({"os.type": "given"}, {}).attributes
        assert tuple(attributes[k] for k in ("host.name", "os.type", "a")) == ("mine", "given", "b")
        assert attributes["process.pid"] == os.getpid()

    def test_detectors_of_the_sdk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that are asked for still run, and win over ours."""
        monkeypatch.setenv("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "process")
        assert sys.version == described({}, {}).attributes["process.runtime.description"]

    def test_switched_off(self) -> None:
        """Then it is the SDK's alone."""
        found = described({"a": "b"}, {"OTEL_LLM_RESOURCE_DETECTORS": "none"})
        assert (found.attributes["a"], "process.pid" in found.attributes) == ("b", False)

    def test_merging(self) -> None:
        """As for every resource: the other one wins."""
        merged = described({"a": "b"}, {}).merge(Resource({"a": "c", "process.pid": 7}))
        assert (merged.attributes["a"], merged.attributes["process.pid"]) == ("c", 7)


def in_children(look: Any, depth: int = 1) -> list[Any]:
    """What *look* gives in a child, its child, and so on."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found = [look()] + (in_children(look, depth - 1) if depth > 1 else [])
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found_there: list[Any] = json.loads(text)
    return found_there


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
class TestFork:
    """Providers made before a server forks its workers."""

    def test_each_process_has_its_own(self) -> None:
        """Pid and instance id of spans and metrics differ in child and grandchild."""
        resource = described({"service.name": "llm"}, {})
        tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        meters = MeterProvider(resource=resource, shutdown_on_exit=False)
        tracer = tracers.get_tracer("t")

        def look() -> Any:
            span: Any = tracer.start_span("s")
            attributes = [span.resource.attributes, meters._sdk_config.resource.attributes]
            names = ("service.name", "process.pid", "service.instance.id")
            return os.getpid(), [[each[name] for name in names] for each in attributes]

        seen = [look(), *in_children(look, depth=2)]
        for pid, (of_spans, of_metrics) in seen:
            assert ["llm", pid] == of_spans[:2]
            assert of_spans == of_metrics
        assert len({of_spans[2] for _, (of_spans, _) in seen}) == 3

    @pytest.mark.parametrize("depth", [1, 2])
    def test_what_the_user_said_stays(self, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """An instance id that the user gave is the children's too."""
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=mine")
        tracers = TracerProvider(resource=described({}, {}), shutdown_on_exit=False)
        tracers.get_tracer("t")
        seen = in_children(lambda: tracers.resource.attributes["service.instance.id"], depth)
        assert ["mine"] * depth == seen

    def test_an_sdk_that_does_not_care(self) -> None:
        """Older SDKs merge nothing; the resource follows by itself."""
        resource = ProcessResource(of_process())
        ((pid, instance),) = in_children(lambda: list(resource.attributes.values())[::-1])
        assert pid != os.getpid()
        assert instance != of_process()["service.instance.id"]
