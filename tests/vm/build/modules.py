"""The kernel and its modules: those of the distribution that tests load, and stand-ins compiled against its headers."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.vm.build.programs import output

if TYPE_CHECKING:
    from tests.vm.build.packages import Packages
    from tests.vm.build.root import GuestRoot

__all__ = ["SOURCES", "Kernel"]

SOURCES = Path(__file__).parents[1] / "modules"

WANTED = ("virtio-pci", "virtio-gpu", "bochs", "nouveau", "pci-stub", "vfio-pci", "aer_inject", "radeon")
"""Modules of the distribution that tests load; what they depend on comes along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An unpacked kernel image and its headers under `path`."""

    path: Path
    release: str

    @staticmethod
    def packages(packages: Packages) -> list[str]:
        """Name the packages of the newest kernel: an image, and what modules are compiled against."""
        (image,) = (name for name in packages.depends("linux-image-amd64") if name.startswith("linux-image-"))
        (headers,) = (name for name in packages.depends("linux-headers-amd64") if name.startswith("linux-headers-"))
        below = [name for name in packages.depends(headers) if name.startswith(("linux-headers-", "linux-kbuild-"))]
        return [image, headers, *below]

    @classmethod
    def at(cls, path: Path) -> Kernel:
        """Return the one kernel that was unpacked under `path`."""
        (modules,) = (path / "usr/lib/modules").iterdir()
        return cls(path=path, release=modules.name)

    @property
    def image(self) -> Path:
        """The file that a boot loader loads."""
        return self.path / f"boot/vmlinuz-{self.release}"

    def compile_stand_ins(self, folder: Path) -> list[Path]:
        """Compile the stand-ins in a copy of their sources. Raises BuildError."""
        shutil.copytree(SOURCES, folder)
        source = self.path / "usr/src"
        headers = source / f"linux-headers-{self.release}"
        (common,) = source.glob("linux-headers-*-common")
        output("make", "-C", str(common), f"O={headers}", f"M={folder}", "CC=gcc", "-j2", "modules")
        return sorted(folder.glob("*.ko"))

    def install_modules(self, root: GuestRoot, stand_ins: list[Path]) -> None:
        """Put modules into the guest, stand-ins before the distribution's own of the same name. Raises BuildError."""
        kernel = self.path / "usr/lib/modules" / self.release
        root.run("usr/bin/kmod", "-b", str(self.path), self.release, called="depmod")
        target = root.path / "usr/lib/modules" / self.release
        for file in _closure((kernel / "modules.dep").read_text(encoding="utf-8")):
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(kernel / file, target / file)
        (target / "updates").mkdir(parents=True)
        for stand_in in stand_ins:
            shutil.copy(stand_in, target / "updates")
        for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
            shutil.copy(kernel / name, target / name)
        root.run("usr/bin/kmod", "-b", str(root.path), self.release, called="depmod")


def _closure(dependencies: str) -> list[str]:
    """Return the files of the wanted modules and of all below them, from the text of `modules.dep`."""
    below = {file: rest.split() for file, _, rest in (line.partition(":") for line in dependencies.splitlines())}
    names = {Path(file).name.split(".ko")[0].replace("_", "-"): file for file in below}
    found: dict[str, None] = {}
    for name in WANTED:
        file = names[name.replace("_", "-")]
        found.update(dict.fromkeys((file, *below[file])))
    return list(found)
