"""What was tried with the devices themselves (`subject.trials`), judged: copies that were verified, or timed."""

__all__ = ["UNBUILT"]

UNBUILT = {
    "bw.gpu_memory": "no driver tells what the memory of a model should reach, so there is nothing to compare with",
    "bw.staged.chunk_sweep": "a figure for whoever tunes the ring; no value of it is a fault of a machine",
    "lib.compute_smoke": "a computation needs a compiler or a framework, and neither comes with the drivers",
    "lib.mixed.one_process": "both runtimes in one process have crashed it; here each vendor has its own, always",
    "pwr.cooldown": "no load is made here that a device would have to cool down from",
    "pwr.nv.clocks_event": "short copies heat nothing; the gates of group power read the same bits at level standard",
    "pwr.nv.pstate": "copies alone need not raise the state; pcie.speed_under_load shows a link that stays slow",
    "pwr.nv.violation_time": "needs minutes of computation, for which the drivers bring no program",
    "pwr.power_draw_sane": "copies draw little power: it takes a computation to tell a stuck sensor from an idle card",
    "xfer.after_stress": "needs half a minute of computation, for which the drivers bring no program",
    "xfer.dmabuf_probe": "stock drivers refuse it, and it has killed compositors; nothing here depends on it",
    "xfer.ipc": "copies here need no handle of another process: memory is shared by a memfd",
    "xfer.p2p.intel": "there is no engine for Level Zero, so nothing is copied to or from an Intel device",
}
"""Rows of the catalogue that are no gate of their own, and why."""
