"""Whether the initramfs of the running kernel has the drivers and the lines of modprobe.d that the disk has."""

from __future__ import annotations

import io
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.advice import rebuild_initramfs
from pytest_gpucoexist.gates.kernel_module.archive import CannotUnpack, members
from pytest_gpucoexist.gates.kernel_module.modprobe import FOLDERS, Directive, effective_files, module_name, parse_file
from pytest_gpucoexist.gates.kernel_module.modulefile import ModuleInfo, read_module
from pytest_gpucoexist.gates.kernel_module.ondisk import module_info, release
from pytest_gpucoexist.gates.kernel_module.rules import ModuleRules, in_container, module_rules
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import Bad, reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Content", "initramfs_drift", "read_initramfs"]

_DRIVERS = {
    "nvidia": ("nvidia", "nvidia_drm", "nouveau", "nova_core"),
    "amd": ("amdgpu", "radeon"),
    "intel": ("i915", "xe"),
}
_ALL = frozenset(name for names in _DRIVERS.values() for name in names)
_MODULE = re.compile(r"(?:usr/)?lib/modules/[^/]+/(?:.*/)?(?P<name>[^/]+)\.ko(?P<packed>\.\w+)?")
_CONF = re.compile(r"(?:etc|run|usr/local/lib|usr/lib|lib)/modprobe\.d/[^/]+\.conf")


@dataclass(slots=True, kw_only=True)
class Content:
    """What an initramfs has: GPU drivers (with their own words where they are not compressed), and modprobe.d."""

    modules: dict[str, ModuleInfo | None] = field(default_factory=dict)
    directives: list[Directive] = field(default_factory=list)


def read_initramfs(file: io.BufferedIOBase) -> Content:
    """Read an initramfs. Raises CannotUnpack, OSError or EOFError."""
    content = Content()
    texts: dict[str, bytes] = {}
    for path, data in members(file, _is_wanted):  # type: ignore[arg-type]
        match = _MODULE.fullmatch(path)
        if match is None:
            texts[f"/{path}"] = data
            continue
        info = None if match["packed"] else read_module(io.BytesIO(data), path)
        content.modules[module_name(match["name"])] = None if isinstance(info, Bad) else info
    names = {
        folder: [posixpath.basename(path) for path in texts if posixpath.dirname(path) == folder] for folder in FOLDERS
    }
    for path in effective_files(names):
        content.directives += parse_file(texts[path].decode("utf-8", "replace"), path)
    return content


def _is_wanted(path: str) -> bool:
    match = _MODULE.fullmatch(path)
    return _CONF.fullmatch(path) is not None or (match is not None and module_name(match["name"]) in _ALL)


@gate(
    "kmod.initramfs_drift",
    group="kernel-module",
    title="The initramfs has the drivers and the modprobe.d lines of the disk",
    reads="the running kernel's initramfs in /boot: GPU drivers and modprobe.d in it, against those on disk",
    criterion="same versions; every line that keeps a driver out, or sets its options, is in it too",
    why="the initramfs loads drivers before the disk is there: an older one brings back the driver that was replaced, "
    "or ignores a new blacklist",
    action="rebuild the initramfs and reboot",
    source="dracut(8), update-initramfs(8); NVIDIA's driver README on nouveau in the initramfs",
    level="standard",
    severity="info",
)
def initramfs_drift(subject: Subject) -> Iterator[Finding]:
    """Compare what the initramfs has with the disk, for the vendors that are here."""
    container = in_container(subject)
    if container is not None:
        yield skipped(f"a container ({container}) does not hold the host's initramfs")
        return
    paths = _candidates(subject)
    path = next((each for each in paths if subject.host.exists(each)), None)
    if path is None:
        yield skipped("no initramfs of the running kernel is here")
        return
    try:
        with subject.host.open_file(path) as file:
            content = read_initramfs(file)  # type: ignore[arg-type]
    except CannotUnpack as error:
        yield unknown(f"{path}: {error}")
        return
    except OSError as error:
        yield unknown(f"{path}: {reason(error)}")
        return
    except Exception as error:  # noqa: BLE001  each library has its own words for a file that is cut short
        yield unknown(f"{path} cannot be unpacked: {error}")
        return
    names = [name for vendor, names in _DRIVERS.items() if subject.gpus(vendor) for name in names]
    found = [*_versions(subject, content, names, path), *_lines(subject, content, names, path)]
    yield from found
    if not found:
        inside = [name for name in names if name in content.modules]
        evidence = Evidence(source=path, found=f"drivers: {', '.join(inside) or 'none'}; agree with the disk")
        yield passed("the initramfs says nothing else than the disk", evidence)


def _candidates(subject: Subject) -> list[str]:
    """Return where distributions keep it; that of Arch carries the name of the kernel's package (`pkgbase`)."""
    kernel = release(subject)
    if kernel is None or "/" in kernel:
        return []
    paths = [f"/boot/initrd.img-{kernel}", f"/boot/initramfs-{kernel}.img", f"/boot/initrd-{kernel}"]
    base = (subject.read(f"/lib/modules/{kernel}/pkgbase", 256).text or "").strip()
    if re.fullmatch(r"[\w.+-]+", base):
        paths.append(f"/boot/initramfs-{base}.img")
    machine = (subject.read("/etc/machine-id", 64).text or "").strip()
    if re.fullmatch(r"[0-9a-f]{32}", machine):
        paths.append(f"/boot/{machine}/{kernel}/initrd")
    return paths


def _versions(subject: Subject, content: Content, names: list[str], path: str) -> Iterator[Finding]:
    for name in names:
        inside = content.modules.get(name)
        disk = module_info(subject, name) if inside is not None else None
        if inside is None or disk is None or isinstance(disk, Bad):
            continue
        for key in ("version", "srcversion"):
            old, new = inside.fields.get(key), disk.fields.get(key)
            if old and new and old != new:
                yield warned(
                    f"the initramfs has another {name} than the disk: {key} {old}, not {new}",
                    Evidence(source=f"{path}: {inside.path}", found=old, expected=new),
                    Evidence(source=disk.source, found=new),
                    fix=(rebuild_initramfs(subject),),
                )
                break


def _lines(subject: Subject, content: Content, names: list[str], path: str) -> Iterator[Finding]:
    """Find lines of the disk that a driver inside the initramfs does not get to see."""
    disk = module_rules(subject)
    inside = ModuleRules(directives=tuple(content.directives), arguments=disk.arguments)
    for name in names:
        if name not in content.modules:
            continue
        missing = []
        blocks = [block for block in disk.blocks(name) if block.where != "/proc/cmdline"]
        if blocks and not inside.blocks(name):
            missing.append(Evidence(source=blocks[0].where, found=blocks[0].text, expected=f"the same in {path}"))
        known = inside.settings(name)
        for key, setting in disk.settings(name).items():
            if setting.where != "/proc/cmdline" and (key not in known or known[key].value != setting.value):
                words = f"options {name} {key}={setting.value}"
                missing.append(Evidence(source=setting.where, found=words, expected=f"the same in {path}"))
        if missing:
            yield warned(
                f"the initramfs loads {name} without {', '.join(f'`{each.found}`' for each in missing)}",
                *missing,
                fix=(rebuild_initramfs(subject),),
            )
