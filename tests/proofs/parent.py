"""`python -m tests.proofs.parent HOW MARK FOLDER CUDA HIP`: a session that is in the middle of a slow copy.

It prints its two children and the inode of the segment, and goes on copying until somebody ends it. HOW: "copies",
or "holds", where NVIDIA's child holds the GIL meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main(how: str, mark: str, folder: str, cuda: str, hip: str) -> None:
    """Copy for ever."""
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.processes.opening import open_process
    from pytest_gpucoexist.staging.endpoint import open_endpoint
    from pytest_gpucoexist.staging.service import Staging
    from tests.proofs import called
    from tests.proofs.inventory import MARK
    from tests.proofs.rig import GPUS, MACHINE

    ends: list[Any] = []
    for vendor, library in (("nvidia", cuda), ("amd", hip)):
        fakes = {"GPUCOEXIST_FAKE_MACHINE": f"{folder}/machine.conf", "GPUCOEXIST_FAKE_LOG": f"{folder}/calls.log"}
        environ = {**os.environ, "LD_LIBRARY_PATH": library, MARK: mark, **fakes}
        kind: Any = vendor
        process = open_process(GPUS[vendor][:1], MACHINE, kind, host=local_host(), environ=environ)
        ends.append(open_endpoint(process, GPUS[vendor][0]))
    source, target = ends
    with Staging() as staging, source.allocate(1 << 20) as given, target.allocate(1 << 20) as taken:
        staging.copy(given, taken)
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        inode = next(line.split()[4] for line in lines if "/memfd:gpucoexist (" in line)

        def tell() -> None:
            print(*(end.process.process.pid for end in ends), inode, flush=True)

        if how == "holds":
            source.run(called.hold_the_gil_soon, 0.1, 600)
        threading.Timer(0.3, tell).start()
        while True:
            staging.copy(given, taken)


if __name__ == "__main__":
    main(*sys.argv[1:])
