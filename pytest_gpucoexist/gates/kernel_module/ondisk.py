"""The file from which a module would be loaded into the running kernel, and what DKMS built for it."""

from __future__ import annotations

import io
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.kernel_module.modprobe import module_name
from pytest_gpucoexist.gates.kernel_module.modulefile import ModuleInfo, parse_modinfo_output, read_module
from pytest_gpucoexist.gates.kernel_module.rules import in_container
from pytest_gpucoexist.probes.attributes import kernel_release
from pytest_gpucoexist.probes.reader import Bad, reason

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["ModuleTree", "module_info", "module_tree", "release"]

_TREE_LIMIT = 8 << 20
# The second one is NixOS's.
_BASES = ("/lib/modules", "/run/booted-system/kernel-modules/lib/modules")
_PROGRAMS = ("modinfo", "/sbin/modinfo", "/usr/sbin/modinfo")
# A line of modules.dep is `PATH: PATHS OF WHAT IT NEEDS`; of its thousands only those of GPU drivers are taken apart.
_LINE = re.compile(r"/(?:nvidia[\w-]*|amdgpu|radeon|i915|xe|nouveau|nova[-_](?:core|drm))\.ko(?:\.\w+)?:")
# Debian installs NVIDIA's modules under names of their own: nvidia-current.ko, nvidia-tesla-470-uvm.ko.
_DEBIAN = re.compile(r"nvidia_(?:current|tesla(?:_\d+)?|legacy_\w+?)(?P<part>_(?:uvm|drm|modeset|peermem))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTree:
    """/lib/modules of the running kernel: files of GPU drivers by module name, and what is built in."""

    folder: str
    files: Mapping[str, str]
    builtin: frozenset[str] = frozenset()


def release(subject: Subject) -> str | None:
    """Return the running kernel's release."""
    return subject.shared(("kernel_module", "release"), lambda: kernel_release(subject.host))


def module_tree(subject: Subject) -> ModuleTree | Bad:
    """Read modules.dep of the running kernel, once; a Bad says why there is nothing to read.

    Its status is `unsupported` where no answer is to be expected (a container), `absent` where the folder is missing.
    """
    return subject.shared(("kernel_module", "tree"), lambda: _tree(subject))


def _tree(subject: Subject) -> ModuleTree | Bad:
    container = in_container(subject)
    if container is not None:
        return Bad(f"a container ({container}) does not have the modules of the host's kernel", "unsupported")
    kernel = release(subject)
    if kernel is None or "/" in kernel:
        return Bad("the running kernel's release is not known")
    folders = [f"{base}/{kernel}" for base in _BASES]
    folder = next((each for each in folders if subject.host.exists(each)), folders[0])
    text = subject.read(f"{folder}/modules.dep", _TREE_LIMIT)
    if text.text is None:
        return Bad(f"{text.path}: {text.detail}", text.status)
    if ".ko" not in text.text:
        return Bad(f"{text.path} lists no module")
    files: dict[str, str] = {}
    for match in _LINE.finditer(text.text):
        path = text.text[text.text.rfind("\n", 0, match.start()) + 1 : match.end() - 1]
        files.setdefault(_stem(path), path if path.startswith("/") else f"{folder}/{path}")
    for name in list(files):
        debian = _DEBIAN.fullmatch(name)
        if debian is not None:
            files.setdefault(f"nvidia{debian['part'] or ''}", files[name])
    builtin = subject.read(f"{folder}/modules.builtin", _TREE_LIMIT).text or ""
    return ModuleTree(folder=folder, files=files, builtin=frozenset(_stem(line) for line in builtin.split()))


def _stem(path: str) -> str:
    return module_name(posixpath.basename(path.strip()).partition(".ko")[0])


def module_info(subject: Subject, name: str) -> ModuleInfo | Bad:
    """Return what the file of a module says, once for all gates.

    The Bad's status is `absent` where this kernel has no such file, `unsupported` where this level does not look: a
    compressed file is unpacked from level standard on, by modinfo where it is installed.
    """
    return subject.shared(("kernel_module", "info", name), lambda: _info(subject, name))


def _info(subject: Subject, name: str) -> ModuleInfo | Bad:
    tree = module_tree(subject)
    if isinstance(tree, Bad):
        return tree
    path = tree.files.get(name)
    if path is None:
        if name in tree.builtin:
            return Bad(f"{name} is built into this kernel", "unsupported")
        return Bad(f"{tree.folder} has no {name}", "absent")
    # A record keeps what modinfo printed, and no module: the program goes first where it may be asked.
    if subject.level != "quick" or subject.host.simulated:
        told = _asked(subject, path)
        if told is not None:
            return told
    if path.endswith(".ko"):
        return _plain(subject, path)
    if subject.level == "quick":
        return Bad(f"{path} is compressed, and level quick does not unpack it", "unsupported")
    return _unpacked(subject, path)


def _plain(subject: Subject, path: str) -> ModuleInfo | Bad:
    try:
        with subject.host.open_file(path) as file:
            return read_module(file, path)
    except OSError as error:
        return Bad(f"{path}: {reason(error)}")


def _asked(subject: Subject, path: str) -> ModuleInfo | Bad | None:
    """Ask modinfo, which loads nothing; None where it is not installed."""
    for program in _PROGRAMS:
        try:
            done = subject.host.run([program, path], timeout_s=3.0)
        except OSError:
            continue
        if done.returncode != 0:
            return Bad(f"modinfo {path}: {'no answer' if done.timed_out else f'exit status {done.returncode}'}")
        return parse_modinfo_output(done.stdout.decode("utf-8", "replace"), path)
    return None


def _unpacked(subject: Subject, path: str) -> ModuleInfo | Bad:
    """Unpack by the standard library: gzip and xz; zstd from Python 3.14 on."""
    limit = 512 << 20
    try:
        with subject.host.open_file(path) as file:
            if path.endswith(".gz"):
                import gzip

                with gzip.open(file) as unpacked:
                    data = unpacked.read(limit)
            elif path.endswith(".xz"):
                import lzma

                with lzma.open(file) as unpacked:
                    data = unpacked.read(limit)
            else:
                try:
                    from compression import zstd  # type: ignore[import-not-found]
                except ImportError:
                    return Bad(f"{path}: modinfo is not installed, and this Python cannot unpack it")
                data = zstd.ZstdFile(file).read(limit)
    except OSError as error:
        return Bad(f"{path}: {reason(error)}")
    except Exception as error:  # noqa: BLE001  each library has its own words for a file that is cut short
        return Bad(f"{path} cannot be unpacked: {error}")
    return read_module(io.BytesIO(data), path)
