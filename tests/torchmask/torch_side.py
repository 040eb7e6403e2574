"""Runs in an interpreter that has torch's CPU build: answers what torch's own parsers say.

Reads a JSON list of questions on stdin. Each has the environment, whether to answer as a ROCm build does, and the
UUIDs of the devices; the answer is the parsed list, the ordinals of the devices, or the name of the exception.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.cuda as tc


def answer(question: dict[str, Any]) -> dict[str, Any]:
    variables = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    for name in variables:
        os.environ.pop(name, None)
    os.environ.update(question["environ"])
    torch.version.hip = "6.4" if question["rocm"] else None
    try:
        entries = tc._parse_visible_devices()
    except RuntimeError as error:
        return {"error": str(error)}
    uuids = question["uuids"]
    if entries and isinstance(entries[0], str):
        ordinals = tc._transform_uuid_to_ordinals(entries, uuids)
    else:
        # As in torch's own _device_count_nvml: the first that is out of range ends the list.
        ordinals = []
        for entry in entries:
            if entry >= len(uuids):
                break
            ordinals.append(entry)
    return {"entries": entries, "ordinals": ordinals}


if __name__ == "__main__":
    json.dump([answer(question) for question in json.load(sys.stdin)], sys.stdout)
