"""The two archives that a guest boots from: a system that is kept between runs, and this checkout laid over it.

base      Debian's userland and kernel modules, the stand-ins, pytest and what it needs
project   this package and the guest's tests, as they are now
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tests.vm.build.cpio import write_archive
from tests.vm.build.modules import SOURCES, WANTED, Kernel
from tests.vm.build.packages import Packages, unpack
from tests.vm.build.root import USERLAND, GuestRoot

__all__ = ["Image", "build_image", "cache_folder", "write_project"]

ROOT = Path(__file__).parents[3]
GUEST = ROOT / "tests/vm/guest"
SITE = "opt/site"
PROJECT = "opt/project"

DISTRIBUTIONS = ("pytest", "rich", "packaging")
"""Taken from the environment that runs this, so that the guest has the same pytest."""

_KEPT_S = 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What QEMU needs of the system that is kept."""

    folder: Path

    @property
    def root(self) -> GuestRoot:
        """The guest's system as a folder."""
        return GuestRoot(path=self.folder / "root")

    @property
    def kernel(self) -> Path:
        """The kernel image."""
        return self.folder / "vmlinuz"

    @property
    def base(self) -> Path:
        """The archive."""
        return self.folder / "base.cpio"


def cache_folder() -> Path:
    """Return where images and downloads are kept: `GPUCOEXIST_VM_CACHE`, else under the user's cache."""
    own = os.environ.get("GPUCOEXIST_VM_CACHE")
    if own:
        return Path(own).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "gpucoexist-vm"


def build_image(cache: Path) -> Image:
    """Return the image for today's packages and these sources; build it if it is not in the cache.

    An image is complete when its folder has its name: it is built under another one. Raises BuildError.
    """
    packages = Packages(cache / "packages")
    kernel = packages.versions(Kernel.packages(packages))
    userland = {name: version for name, version in packages.resolve(USERLAND).items() if not name.startswith("linux-")}
    distributions = _distributions()
    image = Image(
        folder=cache / f"image-{_key(kernel, userland, {name: d.version for name, d in distributions.items()})}"
    )
    if image.folder.exists():
        image.folder.touch()
        return image
    building = Image(folder=cache / f"building-{os.getpid()}")
    shutil.rmtree(building.folder, ignore_errors=True)
    try:
        building.root.fill(packages.fetch(userland))
        unpack(packages.fetch(kernel), building.folder / "kernel")
        _install(building, Kernel.at(building.folder / "kernel"), list(distributions.values()))
        shutil.rmtree(building.folder / "kernel")
        if not image.folder.exists():  # another session can have been faster
            building.folder.rename(image.folder)
    finally:
        shutil.rmtree(building.folder, ignore_errors=True)
    _forget_old(cache, kept=image)
    packages.forget_others({**kernel, **userland})
    return image


def _forget_old(cache: Path, *, kept: Image) -> None:
    """Remove images that no session has used for a week."""
    for folder in cache.glob("image-*"):
        if folder != kept.folder and time.time() - folder.stat().st_mtime > _KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)


def _install(image: Image, kernel: Kernel, distributions: list[metadata.Distribution]) -> None:
    kernel.install_modules(image.root, kernel.compile_stand_ins(image.folder / "stand-ins"))
    shutil.copy(kernel.image, image.kernel)
    for distribution in distributions:
        _copy_distribution(distribution, image.root.path / SITE)
    image.root.compile("usr/lib", SITE)
    with image.base.open("wb") as out:
        write_archive(image.root.path, out)


def write_project(image: Image, folder: Path, selected: list[str]) -> Path:
    """Write the archive with this checkout's package, the guest's tests, and which of them to run."""
    root = GuestRoot(path=folder / "project")
    project = root.path / PROJECT
    ignored = shutil.ignore_patterns("__pycache__", "*.html")
    shutil.copytree(ROOT / "pytest_gpucoexist", project / "pytest_gpucoexist", ignore=ignored)
    shutil.copytree(GUEST, project / "tests/vm/guest", ignore=ignored)
    for package in ("tests", "tests/vm"):
        (project / package / "__init__.py").touch()
    shutil.copy(GUEST / "init", root.path / "init")
    _describe_package(project)
    (project / "selected.json").write_text(json.dumps(selected), encoding="utf-8")
    image.root.compile(str(project))
    archive = folder / "project.cpio"
    with archive.open("wb") as out:
        write_archive(root.path, out)
    shutil.rmtree(root.path)
    return archive


def _describe_package(project: Path) -> None:
    """Write the metadata that names the plugin's entry point, as an installation would."""
    installed = metadata.distribution("pytest-gpucoexist")
    folder = project / f"pytest_gpucoexist-{installed.version}.dist-info"
    folder.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (folder / name).write_text(installed.read_text(name) or "", encoding="utf-8")


def _distributions() -> dict[str, metadata.Distribution]:
    """Return pytest, rich and everything they need here, by name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(DISTRIBUTIONS)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for other systems or older Pythons than this one
        required = found[name].requires or []
        waiting += [
            re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0].lower() for text in required if "extra ==" not in text
        ]
    return found


def _copy_distribution(distribution: metadata.Distribution, site: Path) -> None:
    for file in distribution.files or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(distribution.locate_file(file)), site / file)


def _key(*versions: dict[str, str]) -> str:
    """Name an image by all that it is made of."""
    made_of = hashlib.sha256(json.dumps([versions, USERLAND, WANTED], sort_keys=True).encode())
    for path in sorted([*SOURCES.iterdir(), *Path(__file__).parent.glob("*.py")]):
        made_of.update(path.read_bytes())
    return made_of.hexdigest()[:16]
