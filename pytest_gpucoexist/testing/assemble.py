"""Put a machine together: from its parts to a tree and a manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.manifest import Manifest
from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.testing.driven import drive
from pytest_gpucoexist.testing.drivers import write_drivers
from pytest_gpucoexist.testing.kfdtree import write_kfd
from pytest_gpucoexist.testing.pcitree import put, write_functions
from pytest_gpucoexist.testing.placing import place
from pytest_gpucoexist.testing.replies import amdsmi_answer, nvml_answer, runtime_answers
from pytest_gpucoexist.testing.running import ENVIRONMENT, LINKS, running_files
from pytest_gpucoexist.testing.system import SITE_PACKAGES, write_distribution, write_pci_ids, write_system

if TYPE_CHECKING:
    from pytest_gpucoexist.testing.parts import MachineParts

__all__ = ["Assembled", "assemble"]

_TIME = 1_767_225_600.0  # 2026-01-01: the same machine is the same bytes, whenever it is built


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A machine as a recording has it."""

    tree: MemoryTree
    manifest: Manifest


def assemble(parts: MachineParts) -> Assembled:
    """Build everything. Raises ValueError for parts that contradict each other."""
    tree = MemoryTree()
    functions = place(parts)
    gpus = drive(functions, len(parts.nodes))
    errors: dict[str, int] = {}
    for folder in ("/dev", "/etc", "/proc/driver", "/sys/class/drm", "/sys/module", SITE_PACKAGES):
        tree.add_dir(folder)
    write_functions(tree, functions, [node.cpus for node in parts.nodes])
    write_system(tree, parts, [each.driver for each in functions if each.driver])
    write_drivers(tree, gpus, parts, errors)
    write_kfd(tree, gpus, parts, errors)
    write_pci_ids(tree, [gpu.part.model for gpu in gpus])
    for name, version, imports, files in parts.distributions:
        write_distribution(tree, name, version, imports, files)
    if parts.running:
        for path, text in running_files(parts, gpus).items():
            put(tree, path, text)
        for path, target in LINKS.items():
            tree.add_link(path, target)
    for path, content in parts.files.items():
        tree.add_file(path, content)
    for path, target in parts.links.items():
        tree.add_link(path, target)
    for path, node in parts.extra_nodes.items():
        tree.add_node(path, node)
    for path in parts.removed:
        tree.remove(path)
    replies = {"nvml": nvml_answer(gpus, parts), "amdsmi": amdsmi_answer(gpus, parts)}
    replies |= {**runtime_answers(gpus, parts), **parts.replies}
    manifest = Manifest(
        name=parts.name,
        time=_TIME,
        environ={**(ENVIRONMENT if parts.running else {}), **parts.environ},
        python_path=(SITE_PACKAGES,),
        identity=parts.identity,
        errors={**errors, **parts.errors},
        helpers=replies,
        covers=("",),
    )
    return Assembled(tree=tree, manifest=manifest)
