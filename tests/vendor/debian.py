"""Libraries of the vendors as Debian packages them, unpacked into a folder and not installed.

apt runs under a configuration of the test's own: the system's mirror, with the section and release that are wanted,
lists and caches in a folder of the test. Nothing of the system changes.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path


class NotReachable(Exception):  # noqa: N818 - a reason to skip
    """The package cannot be had here; the message says why."""


def unpacked(cache: Path, *packages: str, section: str = "main", release: str | None = None) -> Path:
    """Return a folder with the content of Debian packages, of this release or another. Raises NotReachable."""
    folder = cache / "-".join(["deb", release or "own", *packages])[:100]
    if folder.is_dir():
        return folder
    work = cache / f"deb-work.{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    for name in ("lists/partial", "archives/partial", "root"):
        (work / name).mkdir(parents=True)
    try:
        config = work / "apt.conf"
        config.write_text(_configuration(work, _sources(work, section, release)))
        _run(["apt-get", "-q", "update"], work, config)
        _run(["apt-get", "-q", "download", *packages], work, config)
        for archive in sorted(work.glob("*.deb")):
            _run(["dpkg", "-x", str(archive), str(work / "root")], work, config)
        (work / "root").rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _sources(work: Path, section: str, wanted: str | None) -> Path:
    """Write a list of the system's own mirror, with one section of one release."""
    system = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    release = system.get("VERSION_CODENAME", "")
    if system.get("ID") != "debian" or platform.machine() != "x86_64":
        raise NotReachable("needs Debian on x86-64")
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for text in (file.read_text() for file in files if file.is_file()):
        for stanza in re.split(r"\n\s*\n", text):
            mirror = re.search(r"^URIs:\s*(\S+)", stanza, re.MULTILINE)
            suites = re.search(r"^Suites:(.*)", stanza, re.MULTILINE)
            line = re.search(rf"^deb\s+(\[.*?\]\s+)?(\S+)\s+{release}\s", stanza, re.MULTILINE)
            if mirror and suites and release in suites[1].split():
                signed = re.search(r"^Signed-By:\s*(/\S+)", stanza, re.MULTILINE)
                options, address = (f"[signed-by={signed[1]}] " if signed else ""), mirror[1]
            elif line:
                options, address = line[1] or "", line[2]
            else:
                continue
            sources = work / "sources.list"
            sources.write_text(f"deb {options}{address} {wanted or release} {section}\n")
            return sources
    raise NotReachable(f"no mirror of Debian {release} is configured")


def _configuration(work: Path, sources: Path) -> str:
    return "\n".join(
        [
            f'Dir::Etc::SourceList "{sources}";',
            'Dir::Etc::SourceParts "-";',
            f'Dir::State::Lists "{work / "lists"}";',
            f'Dir::Cache "{work}";',
            f'Dir::Cache::Archives "{work / "archives"}";',
            'APT::Sandbox::User "root";',
            'Acquire::Retries "1";',
            'Acquire::http::Timeout "20";',
            'Acquire::https::Timeout "20";',
            "",
        ]
    )


def _run(argv: list[str], folder: Path, config: Path) -> None:
    if shutil.which(argv[0]) is None:
        raise NotReachable(f"needs {argv[0]}")
    environ = {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C"}
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise NotReachable(f"{' '.join(argv[:3])} ended with status {done.returncode}: {' '.join(words)}")
