"""What was tried with the devices themselves (`subject.trials`), judged: copies that were verified, or timed."""

__all__ = ["UNBUILT"]

_COMPUTES = "needs a computation, for which the drivers bring no program"
_UNTIMED = "copies of this kind are not timed in this version"

UNBUILT = {
    "bw.bidir": _UNTIMED,
    "bw.gpu_memory": "no driver tells what the memory of a model should reach, so there is nothing to compare with",
    "bw.host_memcpy": _UNTIMED,
    "bw.numa_penalty": f"{_UNTIMED}; numa.host_buffer_node says where the buffer of each rate lay",
    "bw.p2p.amd": _UNTIMED,
    "bw.p2p.nv": _UNTIMED,
    "bw.pageable_ratio": f"{_UNTIMED}; xfer.pageable verifies them",
    "bw.ramp": _UNTIMED,
    "bw.regression": "a baseline holds no rates in this version; bw.h2d and bw.d2h compare with the link",
    "bw.staged.chunk_sweep": "a figure for whoever tunes the ring; no value of it is a fault of a machine",
    "lib.compute_smoke": _COMPUTES,
    "lib.mixed.one_process": "both runtimes in one process have crashed it; here each vendor has its own, always",
    "pcie.replay.nv": "the counter is not read around the copies in this version",
    "pwr.cooldown": "no load is made here that a device would have to cool down from",
    "pwr.nv.clocks_event": "short copies heat nothing; the gates of group power read the same bits at level standard",
    "pwr.nv.pstate": "copies alone need not raise the state; pcie.speed_under_load shows a link that stays slow",
    "pwr.nv.violation_time": _COMPUTES,
    "pwr.power_draw_sane": _COMPUTES,
    "xfer.after_stress": _COMPUTES,
    "xfer.bitwalk": "the words of xfer.roundtrip are as good as random: each bit is one in some words, zero in others",
    "xfer.dmabuf_probe": "stock drivers refuse it, and it has killed compositors; nothing here depends on it",
    "xfer.ipc": "copies here need no handle of another process: memory is shared by a memfd",
    "xfer.p2p.intel": "there is no engine for Level Zero, so nothing is copied to or from an Intel device",
    "xfer.staged.concurrent": "what all devices copy at once is timed (bw.concurrent_all) and not verified",
    "xfer.staged.pipeline": "part of xfer.staged.cross: its copies go through a ring of slots, each checked",
    "xfer.two_process": "part of xfer.staged.cross: both ends are processes of their own, with a memfd between",
}
"""Rows of the catalogue that are no gate of their own, and why."""
