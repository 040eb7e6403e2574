"""Every line that was collected from reports is some gate's: nothing falls between them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.gates.kernel_log.logs import AMD, INTEL, NVIDIA, logged, said

if TYPE_CHECKING:
    from pathlib import Path

ADDRESSES = {"nvidia": NVIDIA, "amd": AMD, "intel": INTEL}
_ADDRESS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.[0-7])?")
_SHORT = re.compile(r"\[[0-9a-f]{2}:[0-9a-f]{2}\.\d\]")

CONTRADICTED = {
    # the workstation's GPUs have their drivers,
    *("nv.probe_failed", "nv.probe_not_called", "nv.no_devices", "nv.nova_bound", "nouveau.active", "nv.probe_err"),
    *("fw.missing", "intel.force_probe", "intel.probe_fail"),
    # their modules are loaded, their windows assigned, their compute nodes there,
    *("mod.key_rejected", "mod.vermagic", "mod.symver", "pci.bar_mem", "amd.kfd_atomics", "amd.kfd_unsupported"),
    # and one corrected error is none.
    *("pci.aer_corr", "pci.aer_ghes"),
}
"""Rules whose lines are no problem where the machine's present state says otherwise; each has its own test."""


def samples(shared: Path) -> list[dict[str, Any]]:
    """Lines that warn or fail, moved to the workstation's devices; standard error of programs is in no kernel log."""
    found = []
    for text in (shared / "facts/kernel_log_samples.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(text)
        if sample["severity"] != "info" and not sample["rule"].startswith("user."):
            vendor = sample["vendor"] if sample["vendor"] in ADDRESSES else "amd" if "amdgpu" in text else "nvidia"
            slot, _, function = ADDRESSES[vendor].partition(".")
            line = _ADDRESS.sub(lambda match, slot=slot: slot + (match[1] or ""), sample["line"])  # type: ignore[misc]
            found.append({**sample, "line": _SHORT.sub(f"[{slot[5:]}.{function}]", line)})
    return found


def test_every_collected_line_is_told_by_some_gate(shared: Path) -> None:
    """One log for each line would be slow: those of one rule share a machine, and each has its own evidence."""
    silent = set()
    by_rule: dict[str, list[str]] = {}
    for sample in samples(shared):
        by_rule.setdefault(sample["rule"], []).append(sample["line"])
    for rule, lines in by_rule.items():
        judgement = said(logged("\n".join(lines)), "klog.*", session_s=50)
        assert [verdict.detail for verdict in judgement.verdicts if verdict.status == "ERROR"] == []
        told = {each.id for each in judgement.verdicts if each.status in {"WARN", "FAIL"}} - {"klog.baseline"}
        if not told:
            silent.add(rule)
    assert silent <= CONTRADICTED
    assert len(by_rule) - len(silent) > 40
