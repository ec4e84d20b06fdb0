"""The resource of telemetry, right in forked children too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.util.types import AttributeValue

from otel_llm.resources import detected, of_process


def described(
    given: Mapping[str, AttributeValue],
    environ: Mapping[str, str],
    later: Mapping[str, AttributeValue] = MappingProxyType({}),
) -> Resource:
    """The resource of this process.

    *given* wins over `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, these over the SDK's own
    detectors (`OTEL_EXPERIMENTAL_RESOURCE_DETECTORS`), these over what `detected` finds. What comes
    into *later* afterwards, such as an engine's configuration, is there from then on.

    Raises:
        ConfigurationError: `OTEL_LLM_RESOURCE_DETECTORS` is wrong.
    """
    own = detected(environ)
    said = Resource.create(given)
    by_user = {*given, *OTELResourceDetector().detect().attributes}
    return ProcessResource({**own, **said.attributes}, said.schema_url, by_user, later, bool(own))


class ProcessResource(Resource):
    """A resource that tells the instance and pid of the process that reads it.

    Spans and metrics point at one resource, which a process that forks shares with its children.
    Here a child reads values of its own. New SDKs merge an instance id of their own in each
    child; that is taken too, unless the user set one.

    Args:
        attributes: All attributes.
        schema_url: As for `Resource`.
        by_user: Names of attributes that stay as they are in a child.
        later: Attributes that are not known yet; read whenever there are more of them.
        detects: Whether a child's own process and instance are to be told.
    """

    def __init__(
        self,
        attributes: Mapping[str, AttributeValue],
        schema_url: str | None = None,
        by_user: Iterable[str] = (),
        later: Mapping[str, AttributeValue] = MappingProxyType({}),
        detects: bool = True,
    ) -> None:
        super().__init__(attributes, schema_url)
        self._later, self._told = later, 0
        self._detects = detects
        self._by_user = frozenset(by_user)
        self._made_in = self._read_in = os.getpid()

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """All attributes, as of this process."""
        pid = os.getpid()
        if len(self._later) != self._told:
            self._told = len(self._later)
            super().__init__({**self._later, **super().attributes}, self.schema_url)
        if self._read_in != pid and self._detects:
            fresh = {k: v for k, v in of_process().items() if k not in self._by_user}
            super().__init__({**super().attributes, **fresh}, self.schema_url)
            self._read_in = pid
        return super().attributes

    def merge(self, other: Resource) -> Resource:
        """As `Resource.merge`; in a child, where the SDK calls it, what the user set stays."""
        merged = super().merge(other)
        if self._made_in == os.getpid():
            by_user = self._by_user | set(other.attributes)
            return ProcessResource(
                merged.attributes, merged.schema_url, by_user, self._later, self._detects
            )
        kept = {name: self.attributes[name] for name in self._by_user & set(self.attributes)}
        return ProcessResource(
            {**merged.attributes, **kept},
            merged.schema_url,
            self._by_user,
            self._later,
            self._detects,
        )
