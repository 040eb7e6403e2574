"""Options, their environment variables and ini keys: command line, then environment, then ini.

This module is loaded in every session: it holds no dataclass and imports nothing but pytest.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_DEADLINE_S", "Options", "add_options", "read_options"]

DEFAULT_DEADLINE_S = 5.0
DEFAULT_WAIT_S = 600.0
DEFAULT_RANK_DEADLINE_S = 120.0

_REPORTS = (".json", ".html", ".md")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


class _Spec:
    __slots__ = ("choices", "help", "metavar", "name")

    def __init__(self, name: str, text: str, metavar: str | None = None, choices: tuple[str, ...] = ()) -> None:
        self.name = name
        self.help = text
        self.metavar = metavar  # None: a switch
        self.choices = choices


_SPECS = (
    _Spec("require", "what this runner promises, e.g. cuda:2,rocm; missing stops the run with exit status 69", "LIST"),
    _Spec("missing", "what becomes of a test whose hardware is absent", "skip|fail", ("skip", "fail")),
    _Spec("expect-skips", "the hardware skips expected, a number or a file; anything else fails the run", "N|FILE"),
    _Spec("write-skips", "write the hardware skips of this run to a file for --gpu-expect-skips", "FILE"),
    _Spec("machine", "replay a recorded machine in place of this one; 'demo' is built in", "demo|PATH"),
    _Spec("simulate", "with a replayed machine: run the tests on simulated devices (host memory)"),
    _Spec("plan", "print where every selected test would run, or why not, and stop"),
    _Spec("observe", "decide nothing, record everything, and report where the suite's own skips differ"),
    _Spec(
        "gates",
        "how far the machine is judged before the first GPU test",
        "quick|off|standard|transfer|full",
        ("quick", "off", "standard", "transfer", "full"),
    ),
    _Spec(
        "gate-policy",
        "what follows when a gate that blocks fails: take the device out, stop the run (exit status 75), only say so",
        "quarantine|stop|warn",
        ("quarantine", "stop", "warn"),
    ),
    _Spec(
        "lease",
        "how long a device is held: for each test, or until a wider scope ends; off: no lease is taken",
        "test|class|module|session|worker|off",
        ("test", "class", "module", "session", "worker", "off"),
    ),
    _Spec(
        "wait",
        "seconds to wait for a device that others hold, outside every test's own timeout (default: 600)",
        "SECONDS",
    ),
    _Spec(
        "busy",
        "what becomes of a test whose devices are used by processes that hold no lease",
        "wait|skip|fail|share",
        ("wait", "skip", "fail", "share"),
    ),
    _Spec(
        "workers",
        "xdist workers: leave their environment alone, each sees only its home device, each sees all, its home first",
        "off|narrow|rotate",
        ("off", "narrow", "rotate"),
    ),
    _Spec("dist", "with xdist: hand tests out by what they need and what is free", "off|auto", ("off", "auto")),
    _Spec(
        "ranks",
        "under torchrun, mpirun or srun: the ranks of a node decide and hold devices together, or each for itself",
        "auto|off",
        ("auto", "off"),
    ),
    _Spec("report", "write the session's report; the suffix says how: .json, .html or .md", "FILE"),
    _Spec("mask-style", "how a visibility mask is written", "auto|index|uuid", ("auto", "index", "uuid")),
)


class Options:
    """What was asked for, checked. `given` has the options that were set anywhere, as they were written."""

    def __init__(self, values: Mapping[str, Any], given: Mapping[str, str]) -> None:
        """`values` has a checked value for every option."""
        self.given = given
        self.require: str | None = values["require"]
        self.promises: tuple[tuple[str, int], ...] = values["promises"]
        self.fail_missing: bool = values["missing"] == "fail"
        self.expect_skips: int | str | None = values["expect-skips"]
        self.write_skips: str | None = values["write-skips"]
        self.machine: str | None = values["machine"]
        self.simulate: bool = values["simulate"]
        self.plan: bool = values["plan"]
        self.observe: bool = values["observe"]
        self.gates: Any = values["gates"]
        self.gate_policy: str = values["gate-policy"]
        self.gate_budget_s: float = values["gate-budget"]
        self.lease: str = values["lease"]
        self.wait_s: float = values["wait"]
        self.busy: str = values["busy"]
        self.workers: str = values["workers"]
        self.dist: str = values["dist"]
        self.ranks: str = values["ranks"]
        self.rank_deadline_s: float = values["rank-deadline"]
        self.lease_dir: str | None = values["lease-dir"]
        self.default_memory_bytes: int | None = values["default-memory"]
        self.workers_per_device: int = values["workers-per-device"]
        self.report: str | None = values["report"]
        self.mask_style: str = values["mask-style"]
        self.helper_deadline_s: float = values["helper-deadline"]

    @property
    def keeps_accounts(self) -> bool:
        """Whether every test's report has to be read: somebody wants more than the terminal summary."""
        return bool(self.observe or self.report or self.write_skips or self.require or self.expect_skips is not None)


def add_options(parser: pytest.Parser) -> None:
    """Add the option group and the ini keys."""
    group = parser.getgroup("gpucoexist", "GPU coexistence")
    for spec in _SPECS:
        if spec.metavar is None:
            group.addoption(f"--gpu-{spec.name}", action="store_true", default=None, help=spec.help)
        else:
            text = f"{spec.help} (default: {spec.choices[0]})" if spec.choices else spec.help
            group.addoption(f"--gpu-{spec.name}", metavar=spec.metavar, default=None, help=text)
        parser.addini(_ini(spec.name), f"like --gpu-{spec.name}", default=None)
    parser.addini("gpu_helper_deadline", "seconds that a vendor library may take to answer (default: 5)", default=None)
    parser.addini(
        "gpu_rank_deadline",
        "seconds that a rank may collect longer than the first that has collected (default: 120)",
        default=None,
    )
    parser.addini(
        "gpu_lease_dir",
        "the folder where leases are kept (default: /run/gpucoexist if it is there, else one of this user)",
    )
    parser.addini(
        "gpu_default_memory",
        "the share of a device's memory that a test without memory= leases, e.g. 2 GiB (default: all)",
        default=None,
    )
    parser.addini(
        "gpu_workers_per_device",
        "with --gpu-dist: xdist workers for each device that tests can use (default: 1)",
        default=None,
    )
    parser.addini("gpu_gate_budget", "seconds that the copies of --gpu-gates=full may take (default: 60)")
    parser.addini("gpu_gates_ignore", "gates to ignore, each with its reason: GATE: REASON", "linelist")
    parser.addini("gpu_gate_limits", "numbers of gates, e.g. dev.nofile.base = 1024", "linelist")
    parser.addini(
        "gpu_gate_unknown", "what a blocking gate comes to that cannot read its evidence: warn|fail", default=None
    )
    for vendor in ("nvidia", "amd", "intel"):
        parser.addini(f"gpu_python_{vendor}", f"the Python of gpu_process for {vendor} (default: pytest's own)")
    parser.addini("gpu_marks", "the project's own marks in our terms, e.g. multi_gpu: gpu(count=2)", "linelist")
    parser.addini("gpu_doctests", "what doctests need, by path, e.g. docs/gpu/*.md: cuda", "linelist")


def read_options(config: pytest.Config) -> Options:
    """Collect and check all values. Raises pytest.UsageError that lists the good ones."""
    values: dict[str, Any] = {}
    given: dict[str, str] = {}
    for spec in _SPECS:
        where, raw = _lookup(config, spec.name)
        if raw is not None:
            given[spec.name] = str(raw)
        values[spec.name] = _checked(spec, where, raw)
    values["promises"] = _promises(values["require"])
    where, raw = _lookup(config, "helper-deadline")
    values["helper-deadline"] = _deadline(where, raw)
    where, raw = _lookup(config, "rank-deadline")
    values["rank-deadline"] = _deadline(where, raw, DEFAULT_RANK_DEADLINE_S)
    values["gate-budget"] = _deadline(*_lookup(config, "gate-budget"), 60.0)
    values["wait"] = _wait(*_lookup(config, "wait"))
    values["lease-dir"] = _lookup(config, "lease-dir")[1] or None
    values["default-memory"] = _memory(*_lookup(config, "default-memory"))
    values["workers-per-device"] = _count(*_lookup(config, "workers-per-device"))
    if values["simulate"] and values["machine"] is None:
        raise pytest.UsageError("--gpu-simulate needs a replayed machine: add --gpu-machine=demo or --gpu-machine=PATH")
    return Options(values, given)


def _lookup(config: pytest.Config, name: str) -> tuple[str, Any]:
    value = getattr(config.option, f"gpu_{name.replace('-', '_')}", None)
    if value is not None:
        return f"--gpu-{name}", value
    variable = f"PYTEST_GPU_{name.replace('-', '_').upper()}"
    said = os.environ.get(variable)
    if said is not None:
        return variable, said
    value = config.getini(_ini(name))
    if isinstance(value, (list, tuple)):  # a TOML array, which pytest lets through
        value = ",".join(str(part) for part in value)
    return _ini(name), value or None


def _ini(name: str) -> str:
    return f"gpu_{name.replace('-', '_')}"


def _checked(spec: _Spec, where: str, raw: Any) -> Any:
    if spec.metavar is None:
        return _switch(where, raw)
    if raw is None or raw == "":
        return spec.choices[0] if spec.choices else None
    if spec.choices and raw not in spec.choices:
        raise pytest.UsageError(f"{where}: {raw!r} is not one of {', '.join(spec.choices)}")
    if spec.name == "expect-skips" and re.fullmatch(r"\d+", raw):
        return int(raw)
    if spec.name == "report" and not raw.endswith(_REPORTS):
        raise pytest.UsageError(f"{where}: {raw!r} must end in one of {', '.join(_REPORTS)}")
    return raw


def _switch(where: str, raw: Any) -> bool:
    text = str(raw or "").lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise pytest.UsageError(f"{where}: {raw!r} is not one of true, false")


def _deadline(where: str, raw: Any, default_s: float = DEFAULT_DEADLINE_S) -> float:
    if raw is None or raw == "":
        return default_s
    try:
        seconds = float(raw)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise pytest.UsageError(f"{where}: {raw!r} is not a number of seconds between 0 and 3600")
    return seconds


def _wait(where: str, raw: Any) -> float:
    if raw is None or raw == "":
        return DEFAULT_WAIT_S
    try:
        seconds = float(raw)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_WAIT_S:
        raise pytest.UsageError(f"{where}: {raw!r} is not a number of seconds between 0 and {_LONGEST_WAIT_S}")
    return seconds


_LONGEST_WAIT_S = 604_800  # a week


def _memory(where: str, raw: Any) -> int | None:
    if raw is None or raw == "":
        return None
    from pytest_gpucoexist.errors import RequirementError
    from pytest_gpucoexist.model.arguments import parse_memory

    try:
        return parse_memory(raw)
    except RequirementError as error:
        raise pytest.UsageError(f"{where}: {error}") from None


def _count(where: str, raw: Any) -> int:
    if raw is None or raw == "":
        return 1
    if not re.fullmatch(r"[1-9]\d{0,3}", str(raw)):
        raise pytest.UsageError(f"{where}: {raw!r} is not a number of workers between 1 and 9999")
    return int(raw)


def _promises(text: str | None) -> tuple[tuple[str, int], ...]:
    if not text:
        return ()
    from pytest_gpucoexist.errors import UserError
    from pytest_gpucoexist.model.promises import parse_promises

    try:
        return parse_promises(text, "--gpu-require")
    except UserError as error:
        raise pytest.UsageError(str(error)) from None
