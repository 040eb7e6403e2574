"""Get Debian's packages by name: whichever versions its index holds today, with everything that they depend on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.vm.build.programs import BuildError, output

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Packages", "unpack"]

_DIRECT = re.compile(r"^\s*\|?Depends: ([a-z0-9][a-z0-9+.-]+)", re.MULTILINE)
_INSTALL = re.compile(r"^Inst (?P<name>\S+) \((?P<version>\S+)", re.MULTILINE)


class Packages:
    """Downloads of packages, kept in `folder` between runs.

    The dependencies are those of a system that has nothing: an empty list of installed packages. Nothing is
    installed, so no privilege is needed once the index is there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "partial").mkdir(parents=True, exist_ok=True)
        self._status = folder / "status"
        self._status.touch()

    def depends(self, name: str) -> list[str]:
        """Return the packages that one names as its dependencies, in their order. Raises BuildError."""
        return _DIRECT.findall(output("apt-cache", "depends", name))

    def resolve(self, names: Iterable[str]) -> dict[str, str]:
        """Return versions by name: these packages and everything below them. Raises BuildError."""
        text = output("apt-get", *self._options(), "--simulate", "install", *names)
        return {match["name"]: match["version"] for match in _INSTALL.finditer(text)}

    def versions(self, names: Iterable[str]) -> dict[str, str]:
        """Return the versions that the index offers for exactly these packages. Raises BuildError."""
        found: dict[str, str] = {}
        for name in names:
            match = re.search(r"^Version: (\S+)", output("apt-cache", "show", "--no-all-versions", name), re.MULTILINE)
            if match is None:
                raise BuildError(f"the package index offers no {name}")
            found[name] = match[1]
        return found

    def fetch(self, wanted: dict[str, str]) -> list[Path]:
        """Return the files of these packages; download those that are not here yet. Raises BuildError."""
        lacking = [name for name, version in wanted.items() if self._file(name, version) is None]
        if lacking:
            output("apt-get", *self._options(), "download", *lacking, cwd=self.folder)
        files = {name: self._file(name, version) for name, version in wanted.items()}
        absent = [name for name, path in files.items() if path is None]
        if absent:
            raise BuildError(f"downloaded, and not there: {', '.join(absent)}")
        return [path for path in files.values() if path is not None]

    def forget_others(self, wanted: dict[str, str]) -> None:
        """Remove downloads of other versions."""
        kept = {self._file(name, version) for name, version in wanted.items()}
        for path in self.folder.glob("*.deb"):
            if path not in kept:
                path.unlink()

    def _file(self, name: str, version: str) -> Path | None:
        # apt writes the colon of an epoch as %3a.
        return next(iter(self.folder.glob(f"{name}_{version.replace(':', '%3a')}_*.deb")), None)

    def _options(self) -> list[str]:
        settings = {
            "Dir::State::status": str(self._status),
            "Dir::Cache::archives": str(self.folder),
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Debug::NoLocking": "1",
            "APT::Sandbox::User": "",
            "APT::Install-Recommends": "false",
        }
        return ["-qq", *(argument for name, value in settings.items() for argument in ("-o", f"{name}={value}"))]


def unpack(files: Iterable[Path], root: Path) -> None:
    """Unpack packages into a folder that has `/bin`, `/lib` and the like as links into `/usr`. Raises BuildError."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    for file in files:
        output(
            "sh", "-c", 'dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink -C "$1"', str(file), str(root)
        )
