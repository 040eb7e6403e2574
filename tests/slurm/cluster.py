"""A real Slurm on loopback in a folder: munged, slurmctld and one slurmd for each node. Nothing of it stays.

The nodes are this machine under several names (`slurmd -N`, a build with `--enable-multiple-slurmd` as Debian's). Their
GPUs are character devices that nobody opens: Slurm only counts and exports them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["NODES", "Cluster", "unavailable"]

# Node → GRES types and their counts, in the order of `Gres=`: Slurm numbers across them.
NODES: dict[str, dict[str, int]] = {"green": {"nvidia": 2}, "red": {"amd": 2}, "mixed": {"nvidia": 2, "amd": 2}}

_CPUS = 8  # claimed: the daemons share this machine
_START_S = 30


def unavailable() -> str | None:
    """Say what is missing to run it; None when nothing is."""
    if not os.environ.get("GPUCOEXIST_SLURM"):
        return "needs GPUCOEXIST_SLURM=1"
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun", "sinfo") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slurm-wlm munge"
    return None if os.getuid() == 0 else "needs root: slurmd runs its tasks as their users"


class Cluster:
    """Started by `start`, ended by `stop`; `environ` is what a client of it needs."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds everything. Its path must be short: it is that of a Unix socket too."""
        self.folder = folder
        self.environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons and wait until every node is idle. Raises RuntimeError with their logs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)  # munge wants its socket in a folder that everybody may enter
        for name in ("state", "dev", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        for node, types in NODES.items():
            for kind, count in types.items():
                for number in range(count):
                    os.mknod(self._device(node, kind, number), stat.S_IFCHR | 0o600, os.makedev(1, 3))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.folder / "slurm.conf").write_text(self._slurm_conf())
        (self.folder / "gres.conf").write_text(self._gres_conf())
        files = {"--key-file": "munge.key", "--socket": "munge", "--pid-file": "munge.pid", "--log-file": "munge.log"}
        files |= {"--seed-file": "munge.seed"}
        self._start(
            "munged", "--foreground", "--force", *(f"{name}={self.folder / path}" for name, path in files.items())
        )
        self._until((self.folder / "munge").exists, "munged has no socket")
        self._start("slurmctld", "-D", "-i")
        for node in NODES:
            self._start("slurmd", "-D", "-N", node)
        self._until(self._all_idle, "not every node is idle")

    def stop(self) -> None:
        """End every daemon, and what they started, and remove the folder."""
        self.run("scancel", "--full", "--user", "root", check=False)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)

    def left(self) -> list[int]:
        """Return the processes that steps of this cluster started and that still run."""
        mark = f"SLURM_CONF={self.environ['SLURM_CONF']}".encode()
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found

    def run(self, *command: str, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a client, or anything that calls one."""
        settings: dict[str, Any] = {"env": self.environ, "timeout": 60, "text": True, **more}
        return subprocess.run(command, capture_output=True, check=check, **settings)

    def _all_idle(self) -> bool:
        said = self.run("sinfo", "--noheader", "--Node", "--format=%N %t", check=False).stdout.split("\n")
        return sorted(filter(None, map(str.strip, said))) == sorted(f"{node} idle" for node in NODES)

    def _device(self, node: str, kind: str, number: int) -> str:
        return str(self.folder / "dev" / f"{node}-{kind}{number}")

    def _start(self, *command: str) -> None:
        with open(self.folder / f"{Path(command[0]).name}-{len(self._daemons)}.out", "wb") as log:
            self._daemons.append(
                subprocess.Popen(
                    command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )

    def _until(self, done: Any, words: str) -> None:
        until = time.monotonic() + _START_S
        while not done():
            if time.monotonic() > until or any(daemon.poll() is not None for daemon in self._daemons):
                logs = "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in self.folder.glob("*.out"))
                raise RuntimeError(f"{words}\n{logs}")
            time.sleep(0.1)

    def _slurm_conf(self) -> str:
        ports = _free_ports(len(NODES) + 1)
        lines = [
            "ClusterName=loopback",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder}/munge",
            "CredType=cred/munge",
            "CommunicationParameters=NoInAddrAny",
            "MpiDefault=none",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "GresTypes=gpu",
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            "JobAcctGatherType=jobacct_gather/none",
            "InactiveLimit=0",
            "KillWait=2",
            "MessageTimeout=20",
            "SwitchType=switch/none",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool-%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={self.folder}/slurmctld.log",
            f"SlurmdLogFile={self.folder}/slurmd-%n.log",
        ]
        for port, (node, types) in zip(ports[1:], NODES.items(), strict=True):
            gres = ",".join(f"gpu:{kind}:{count}" for kind, count in types.items())
            lines.append(
                f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={_CPUS} Gres={gres}"
            )
        lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=NO")
        return "\n".join(lines) + "\n"

    def _gres_conf(self) -> str:
        return "".join(
            f"NodeName={node} Name=gpu Type={kind} File={self._device(node, kind, number)}\n"
            for node, types in NODES.items()
            for kind, count in types.items()
            for number in range(count)
        )


def _free_ports(count: int) -> list[int]:
    ends = [socket.socket() for _ in range(count)]
    try:
        for end in ends:
            end.bind(("127.0.0.1", 0))
        return [end.getsockname()[1] for end in ends]
    finally:
        for end in ends:
            end.close()
