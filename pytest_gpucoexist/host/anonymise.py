"""Take every personal detail out of a record: serials, UUIDs, names of hosts and users, addresses, command lines.

A value is replaced wherever it stands (contents, paths, links, replies of helpers, the environment), and everywhere by
the same, so that what belonged together still does.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host.anonymiser import PUBLIC_FILES, SHORT, Anonymiser
from pytest_gpucoexist.host.personal import Details, People
from pytest_gpucoexist.host.places import KERNEL_AREA, is_telling
from pytest_gpucoexist.host.tree import MemoryTree

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import HelperReply, Identity
    from pytest_gpucoexist.host.manifest import Manifest, ProgramRun

__all__ = ["anonymised"]

_ALL = 2**31


def anonymised(
    tree: MemoryTree, manifest: Manifest, people: People | None = None, key: bytes | None = None
) -> tuple[MemoryTree, Manifest]:
    """Return both without personal details. Raises RecordingError should a known one survive."""
    details = Details()
    details.know(people or People())
    _collect(tree, manifest, details)
    anonymiser = Anonymiser(details, key or os.urandom(16))
    clean = _tree(tree, anonymiser)
    manifest = _manifest(_trimmed(tree, manifest), anonymiser)
    _check(clean, manifest, details)
    return clean, manifest


def _collect(tree: MemoryTree, manifest: Manifest, details: Details) -> None:
    for path, kind in tree.walk():
        details.text(path)
        if kind == "file" and path.rpartition("/")[2] not in PUBLIC_FILES:
            details.file(path, tree.read(path, _ALL).decode("utf-8", "surrogateescape"))
        elif kind == "link":
            details.text(tree.target(path))
    for value in (*manifest.environ.values(), *manifest.python_path):
        details.text(value)
    for reply in manifest.helpers.values():
        details.reply(reply.data)
        details.text(reply.detail or "")
    for run in manifest.programs:
        details.text(f"{run.stdout}\n{run.stderr}")


def _tree(tree: MemoryTree, anonymiser: Anonymiser) -> MemoryTree:
    clean = MemoryTree()
    for path, kind in tree.walk():
        new = anonymiser.path(path)
        if kind == "dir":
            clean.add_dir(new)
        elif kind == "link":
            clean.add_link(new, anonymiser.link(path, tree.target(path)))
        elif kind == "file":
            clean.add_file(new, anonymiser.content(path, tree.read(path, _ALL)))
        else:
            clean.add_node(new, tree.node(path))
    return clean


def _trimmed(tree: MemoryTree, manifest: Manifest) -> Manifest:
    """Leave out of listings what nobody looked at further and what is of no GPU: installed packages, private files."""
    looked_at = {path for path, _kind in tree.walk()}
    looked_at.update(manifest.nodes, manifest.errors, manifest.may_open, manifest.listings)
    packages = {folder.rstrip("/") for folder in manifest.python_path}

    def whole(folder: str) -> bool:
        """Whether a folder's names are public: the kernel's, or what is inside a package of a GPU framework."""
        return KERNEL_AREA.match(folder) is not None or any(folder.startswith(f"{each}/") for each in packages)

    return replace(
        manifest,
        listings={
            folder: names
            if whole(folder) and folder not in packages
            else tuple(name for name in names if is_telling(name) or f"{folder}/{name}" in looked_at)
            for folder, names in manifest.listings.items()
        },
    )


def _manifest(manifest: Manifest, anonymiser: Anonymiser) -> Manifest:
    path, text = anonymiser.path, anonymiser.text
    identity = manifest.identity
    return replace(
        manifest,
        name=None if manifest.name is None else text(manifest.name),
        environ={
            name: anonymiser.mask(value) if name.endswith("_VISIBLE_DEVICES") else text(value)
            for name, value in manifest.environ.items()
        },
        python_path=tuple(map(path, manifest.python_path)),
        identity=None if identity is None else _identity(identity, anonymiser),
        nodes={path(each): node for each, node in manifest.nodes.items()},
        errors={path(each): code for each, code in manifest.errors.items()},
        may_open={path(each): codes for each, codes in manifest.may_open.items()},
        listings={
            path(each): tuple(path(f"{each}/{name}").rpartition("/")[2] for name in names)
            for each, names in manifest.listings.items()
        },
        links={path(each): anonymiser.link(each, target) for each, target in manifest.links.items()},
        helpers={name: _reply(reply, anonymiser) for name, reply in manifest.helpers.items()},
        programs=tuple(_program(run, anonymiser) for run in manifest.programs),
    )


def _identity(identity: Identity, anonymiser: Anonymiser) -> Identity:
    return replace(
        identity, group_names={anonymiser.group(name, gid): gid for name, gid in identity.group_names.items()}
    )


def _reply(reply: HelperReply, anonymiser: Anonymiser) -> HelperReply:
    detail = None if reply.detail is None else anonymiser.text(reply.detail)
    return replace(reply, data=anonymiser.json(reply.data), detail=detail)


def _program(run: ProgramRun, anonymiser: Anonymiser) -> ProgramRun:
    is_log = run.argv[0].rpartition("/")[2] == "journalctl" and "--dmesg" in run.argv
    return replace(
        run,
        argv=tuple(map(anonymiser.path, run.argv)),
        stdout=anonymiser.kernel_log(run.stdout) if is_log else anonymiser.text(run.stdout),
        stderr=anonymiser.text(run.stderr),
    )


def _check(tree: MemoryTree, manifest: Manifest, details: Details) -> None:
    """Look once more for what was found: a replacement that missed a place must not leave this machine."""
    forbidden = [re.escape(value.lower()) for value in details.serials if len(value) > SHORT]
    # A whole folder: `/home/user` is also how the names begin that stand for it.
    forbidden += [rf"{re.escape(home.lower())}(?![\w.-])" for home in details.homes if len(home) > SHORT]
    forbidden += [f"{number:016x}" for number in details.unique_ids]
    texts = [manifest.to_text().lower()]
    for path, kind in tree.walk():
        texts.append(path.lower())
        if kind == "file":
            texts.append(tree.read(path, _ALL).decode("utf-8", "replace").lower())
        elif kind == "link":
            texts.append(tree.target(path).lower())
    everything = "\n".join(texts)
    for value in forbidden:
        if re.search(value, everything):
            raise RecordingError(
                "not written: a personal value could not be removed everywhere; please report this as a bug"
            )
