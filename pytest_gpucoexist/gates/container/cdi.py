"""Specifications of the Container Device Interface: nodes that they name and that are gone."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.container.place import container_of
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Spec", "device_specs", "spec_of"]

_FOLDERS = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
_KIND = re.compile(r"""^kind:\s*["']?([\w.-]+/[\w.-]+)["']?\s*(?:#.*)?$""", re.MULTILINE)
_KEY = re.compile(r"""^(\s*)((?:-\s+)*)(\w+):\s*(.*?)\s*$""")
_GPUS = {"nvidia.com": "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", "amd.com": "amd-ctk cdi generate"}
_MAX_BYTES = 1 << 20

Spec = tuple[str, tuple[str, ...]]
"""A specification's kind (`nvidia.com/gpu`), and the host's device nodes that it names."""


def spec_of(text: str) -> Spec | None:
    """Read a specification, JSON or YAML; None where it makes no sense.

    Of YAML the block style that generators write is read: `deviceNodes:` with a list of `path:` and `hostPath:`.
    """
    if text.lstrip().startswith("{"):
        return _from_json(text)
    kind = _KIND.search(text)
    return None if kind is None else (kind[1], tuple(dict.fromkeys(_yaml_nodes(text))))


def _from_json(text: str) -> Spec | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or "/" not in kind:
        return None
    edits = [data.get("containerEdits")]
    devices = data.get("devices")
    edits += (
        [each.get("containerEdits") for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    )
    return kind, tuple(dict.fromkeys(path for each in edits for path in _json_nodes(each)))


def _json_nodes(edits: Any) -> Iterator[str]:
    nodes = edits.get("deviceNodes") if isinstance(edits, dict) else None
    for node in nodes if isinstance(nodes, list) else ():
        path = (node.get("hostPath") or node.get("path")) if isinstance(node, dict) else None
        if isinstance(path, str):
            yield path


def _yaml_nodes(text: str) -> Iterator[str]:
    depth: int | None = None  # of the key deviceNodes whose list is being read
    node: dict[str, str] = {}
    for line in text.splitlines():
        match = _KEY.match(line)
        if match is None:
            continue
        indent, dashes, key, value = match.groups()
        column = len(indent) + len(dashes)
        if depth is not None and (column < depth or (column == depth and not dashes)):
            yield from _whole(node)
            depth, node = None, {}
        if depth is not None:
            if dashes:
                yield from _whole(node)
                node = {}
            node[key] = value.strip("\"'")
        if key == "deviceNodes" and not value:
            depth = column
    yield from _whole(node)


def _whole(node: dict[str, str]) -> Iterator[str]:
    path = node.get("hostPath") or node.get("path")
    if path and path.startswith("/"):
        yield path


@gate(
    "ctr.cdi",
    group="container",
    vendors=("nvidia", "amd"),
    severity="info",
    title="CDI specifications name nodes that are there",
    reads="/etc/cdi, /var/run/cdi: *.json, *.yaml of the kinds nvidia.com/* and amd.com/*",
    criterion="every device node that a specification names is there",
    why="a specification is written once: after a GPU was moved, MIG changed or the driver updated, containers that "
    "ask for the device fail to start or get another",
    action="write the specification again with the vendor's tool",
    source="cncf-tags/container-device-interface SPEC.md; NVIDIA Container Toolkit (nvidia-ctk cdi generate)",
)
def device_specs(subject: Subject) -> Iterator[Finding]:
    """Look for every node that the specifications of this host name."""
    if container_of(subject) is not None:
        yield skipped("this is a container: specifications are its host's")
        return
    if not subject.host.covers("/dev"):
        yield skipped("the recording has no /dev")
        return
    seen: set[str] = set()
    for folder in _FOLDERS:
        for name in subject.names(folder):
            if not name.endswith((".json", ".yaml", ".yml")) or name in seen:
                continue
            path = f"{folder}/{name}"
            finding = _judge(subject, path)
            if finding is not None:
                seen.add(name)
                yield finding
    if not seen:
        yield skipped("no specification of GPUs here")


def _judge(subject: Subject, path: str) -> Finding | None:
    """Judge one file; None where it is of other devices."""
    text = subject.read(path, _MAX_BYTES)
    if text.text is None:
        return unknown(f"{path} cannot be read", Evidence(source=path, found=text.detail or text.status))
    spec = spec_of(text.text)
    if spec is None:
        return unknown(
            f"{path} makes no sense", Evidence(source=path, found=repr(text.text[:60]), expected="kind: vendor/class")
        )
    kind, paths = spec
    command = _GPUS.get(kind.partition("/")[0])
    if command is None:
        return None
    if not paths:
        return unknown(
            f"{path} names no device node", Evidence(source=path, found=f"kind {kind}", expected="deviceNodes")
        )
    missing = [each for each in paths if not subject.host.exists(each)]
    if missing:
        rows = [Evidence(source=each, found="not there", expected=f"there ({path})") for each in missing[:8]]
        return warned(
            f"{path} names {', '.join(missing[:4])}, which {'is' if len(missing) == 1 else 'are'} gone",
            *rows,
            fix=[Fix(lines=(f"sudo {command}",))],
        )
    return passed(
        f"every node of {kind} in {path} is there", Evidence(source=path, found=f"{len(paths)} nodes, all there")
    )
