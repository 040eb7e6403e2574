"""All gates within one deadline, one judgement of what they say, and no gate that breaks the run."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.gates import Finding, Gate, Subject, failed, gate, judge, passed, skipped, unknown, warned
from pytest_gpucoexist.model.quarantine import quarantined
from pytest_gpucoexist.model.verdicts import Evidence, Fix, Judgement
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from pytest_gpucoexist.testing.vendor_replies import MigInstance
from tests.gates.judging import subject_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Check = Callable[[Subject], Iterable[Finding]]

WORDS: dict[str, Any] = {
    "group": "driver",
    "title": "A gate",
    "reads": "nothing",
    "criterion": "all is well",
    "why": "to see",
    "action": "mend it",
    "source": "here",
}


def gate_of(check: Check, name: str = "test.gate", **more: Any) -> Gate:
    return gate(name, **{**WORDS, "severity": "fail", "blocking": True, **more})(check)


def two_nvidia() -> MachineBuilder:
    return a_machine().with_gpu("rtx4090").with_gpu("rtx4090")


def said(check: Check, machine: MachineBuilder | None = None, **more: Any) -> Judgement:
    subject = subject_of(machine or two_nvidia(), **more.pop("subject", {}))
    judging = {name: more.pop(name) for name in ("ignore", "unknown_fails") if name in more}
    return judge(subject, gates=[gate_of(check, **more)], **judging)


def test_a_verdict_carries_what_the_gate_said_and_what_it_is() -> None:
    evidence = Evidence(source="/sys/x", found="1", expected="0")
    fix = Fix(path="/etc/x.conf", lines=("x = 0",))

    def check(subject: Subject) -> Iterable[Finding]:
        yield failed("x is 1", evidence, on=subject.gpus()[:1], fix=[fix])

    judgement = said(check)
    (verdict,) = judgement.verdicts
    assert (verdict.id, verdict.group, verdict.status, verdict.severity) == ("test.gate", "driver", "FAIL", "fail")
    assert verdict.devices == ("0000:01:00.0",)
    assert verdict.evidence == (evidence,)
    assert (verdict.expected, verdict.action, verdict.fix, verdict.source) == ("all is well", "mend it", (fix,), "here")
    assert verdict.blocks
    assert judgement.fit is False
    assert judgement.unfit == {"0000:01:00.0": "test.gate: x is 1"}
    assert Judgement.from_json(judgement.to_json()) == judgement


def test_a_failure_that_names_no_device_takes_all_of_its_vendors() -> None:
    machine = two_nvidia().with_gpu("rx7900xtx")
    judgement = said(lambda subject: [failed("the driver is gone")], machine, vendors=("nvidia",))
    assert sorted(judgement.unfit) == ["0000:01:00.0", "0000:02:00.0"]


@pytest.mark.parametrize(
    "finding",
    [warned("so so"), passed("fine"), unknown("dark"), skipped("not here"), failed("bad", blocking=False)],
    ids=lambda finding: finding.status,
)
def test_only_a_failure_that_blocks_takes_devices(finding: Finding) -> None:
    judgement = said(lambda subject: [finding])
    assert judgement.unfit == {}
    assert judgement.fit is (None if finding.status == "UNKNOWN" else True)


def test_a_gate_that_does_not_block_takes_nothing() -> None:
    assert said(lambda subject: [failed("bad")], blocking=False).fit is True


def test_action_is_said_only_where_something_is_to_be_done() -> None:
    (verdict,) = said(lambda subject: [passed("fine")]).verdicts
    assert verdict.action == ""
    (verdict,) = said(lambda subject: [warned("so so", action="do that")]).verdicts
    assert verdict.action == "do that"


def test_what_is_said_of_several_devices_is_one_verdict() -> None:
    def check(subject: Subject) -> Iterable[Finding]:
        for gpu in subject.gpus():
            yield passed("fine", Evidence(source=f"/sys/{gpu.id}", found="0"), on=[gpu])

    (verdict,) = said(check).verdicts
    assert verdict.devices == ("0000:01:00.0", "0000:02:00.0")
    assert [each.source for each in verdict.evidence] == ["/sys/nvidia0", "/sys/nvidia1"]


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (lambda subject: 1 / 0, "the gate broke: ZeroDivisionError: division by zero"),
        (lambda subject: [], "the gate said nothing"),
        (lambda subject: ["fine"], "the gate broke: it yielded 'fine', which is no Finding"),
        (lambda subject: None, "the gate broke: TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_a_gate_that_breaks_is_an_error_with_its_traceback(check: Check, reason: str) -> None:
    judgement = said(check)
    (verdict,) = judgement.verdicts
    assert (verdict.status, verdict.reason) == ("ERROR", reason)
    assert verdict.detail
    assert judgement.unfit == {}
    assert judgement.fit is None


@pytest.mark.parametrize(
    ("leave", "reason"),
    [
        (lambda: pytest.skip("not today"), "the gate broke: Skipped: not today"),
        (lambda: sys.exit(3), "the gate broke: SystemExit: 3"),
        (lambda: pytest.exit("enough"), "the gate broke: _pytest.outcomes.Exit: enough"),
    ],
    ids=["skip", "exit", "pytest.exit"],
)
def test_a_gate_that_leaves_its_thread_is_heard_at_once(leave: Callable[[], None], reason: str) -> None:
    """These are no Exceptions: unheard, they would cost the whole deadline and be a warning of pytest's."""

    def check(subject: Subject) -> Iterable[Finding]:
        leave()
        yield passed("never")

    judgement = said(check, subject={"deadline_s": 3600})
    assert [(each.status, each.reason) for each in judgement.verdicts] == [("ERROR", reason)]


def test_what_a_gate_quotes_is_made_safe() -> None:
    dirty = "a\x1b[31mb\x00\tc\r\nd\udcff\u202e"
    evidence = Evidence(source=dirty, found=dirty, expected=dirty)
    finding = failed(dirty, evidence, action=dirty, fix=[Fix(lines=(dirty,))])
    (verdict,) = said(lambda subject: [finding]).verdicts
    (evidence,) = verdict.evidence
    for text in (verdict.reason, verdict.action, evidence.source, evidence.found, evidence.expected):
        assert text == "a[31mb c d?"
    assert verdict.fix[0].lines == ("a[31mb\tc\nd?",)


def test_what_a_gate_quotes_is_a_text_and_not_endless() -> None:
    odd: Any = ValueError("not a text")
    number: Any = 7
    (verdict,) = said(lambda subject: [warned(odd, Evidence(source="x", found=number))]).verdicts
    assert (verdict.reason, verdict.evidence[0].found) == ("not a text", "7")
    (verdict,) = said(lambda subject: [warned("x" * 100_000)]).verdicts
    assert len(verdict.reason) < 700
    assert verdict.reason.endswith("… (99,400 characters more)")


def test_a_gate_that_does_not_answer_is_unknown_and_the_others_are_heard() -> None:
    hold = threading.Event()

    def stuck(subject: Subject) -> Iterable[Finding]:
        hold.wait()
        yield passed("at last")

    gates = [gate_of(stuck, "test.stuck"), gate_of(lambda subject: [passed("fine")], "test.quick")]
    judgement = judge(subject_of(two_nvidia(), deadline_s=0.5), gates=gates, grace_s=0.0)
    hold.set()
    assert judgement.by_gate() == {"test.stuck": "UNKNOWN", "test.quick": "PASS"}
    assert judgement.verdicts[0].reason == "no answer within 0.5 s"


def test_stuck_gates_do_not_take_every_thread() -> None:
    hold = threading.Event()

    def stuck(subject: Subject) -> Iterable[Finding]:
        hold.wait()
        yield passed("at last")

    gates = [gate_of(stuck, f"test.stuck{number}") for number in range(8)]
    gates.append(gate_of(lambda subject: [passed("fine")], "test.last"))
    judgement = judge(subject_of(two_nvidia(), deadline_s=2), gates=gates, grace_s=0.0)
    hold.set()
    assert judgement.by_gate()["test.last"] == "PASS"
    assert judgement.by_gate()["test.stuck0"] == "UNKNOWN"


def test_a_gate_of_absent_vendors_is_skipped_with_the_reason() -> None:
    judgement = said(lambda subject: [passed("never")], vendors=("amd", "intel"))
    (verdict,) = judgement.verdicts
    assert (verdict.status, verdict.reason) == ("SKIP", "no AMD or Intel GPU here")


def test_a_gate_of_the_host_needs_no_gpu_when_it_says_so() -> None:
    judgement = said(lambda subject: [passed("fine")], a_machine(), vendors=(), needs_gpu=False)
    assert judgement.by_gate() == {"test.gate": "PASS"}
    assert said(lambda subject: [passed("fine")], a_machine(), vendors=()).verdicts[0].reason == "no GPU here"


def test_an_ignored_gate_is_kept_with_the_reason_and_blocks_nothing() -> None:
    judgement = said(lambda subject: [failed("bad")], ignore={"test.*": "a riser"})
    (verdict,) = judgement.verdicts
    assert (verdict.status, verdict.ignored, verdict.blocks) == ("FAIL", "a riser", False)
    assert judgement.by_gate() == {}
    assert judgement.fit is True


def test_unknown_fails_where_a_person_asked_for_it() -> None:
    judgement = said(lambda subject: [unknown("dark")], unknown_fails=True)
    assert (judgement.verdicts[0].status, judgement.fit) == ("FAIL", False)
    assert judgement.verdicts[0].action == "mend it"
    assert said(lambda subject: [unknown("dark")], unknown_fails=True, blocking=False).fit is True


def test_a_device_that_the_caller_hid_is_not_unfit_but_for_its_hiding() -> None:
    machine = two_nvidia().with_environ(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert list(said(lambda subject: [failed("bad")], machine).unfit) == ["0000:02:00.0"]
    assert len(said(lambda subject: [failed("bad")], machine, group="environment").unfit) == 2


def test_a_failure_about_hidden_devices_says_that_it_does_not_block() -> None:
    machine = two_nvidia().with_environ(CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    judgement = said(lambda subject: [failed("bad", on=subject.gpus()[:1])], machine)
    assert (judgement.fit, judgement.verdicts[0].blocks) == (True, False)


def _say(finding: Finding, subject: Subject) -> list[Finding]:
    return [finding]


def test_a_card_of_which_one_partition_is_visible_is_not_hidden() -> None:
    """A gate names one partition for the card; the mask may leave only another."""
    parts = [
        MigInstance(uuid=f"MIG-{number}", name="A100 MIG 3g.20gb", gi=number, memory_total_bytes=20 * 2**30)
        for number in (1, 2)
    ]
    machine = a_machine().with_gpu("a100").with_mig("nvidia0", *parts).with_environ(CUDA_VISIBLE_DEVICES="MIG-2")
    host = machine.host()
    for ask in ((), ["nvidia"]):  # without the library nothing tells whose instance MIG-2 is
        subject = Subject(host=host, machine=discover(host, ask=ask))
        hidden = [gpu for gpu in subject.gpus() if not gpu.visible][:1]
        assert hidden
        finding = failed("it smokes", on=hidden)
        judgement = judge(subject, gates=[gate_of(partial(_say, finding))])
        assert judgement.fit is False
        gpus = quarantined(discover(host, ask=["nvidia"]), judgement.unfit).gpus
        assert [gpu.fit for gpu in gpus if gpu.visible and gpu.partition] == [False]


def test_what_is_not_granted_here_is_nobodys_business() -> None:
    machine = two_nvidia().without_nodes("nvidia1").with_file("/.dockerenv", "")
    subject = subject_of(machine)
    assert [gpu.id for gpu in subject.gpus()] == ["nvidia0"]


def test_shared_evidence_is_read_once_and_its_failure_is_told_to_each() -> None:
    subject = subject_of(two_nvidia())
    made: list[int] = []
    assert [subject.shared("x", lambda: made.append(1) or 7) for _ in range(3)] == [7, 7, 7]  # type: ignore[func-returns-value]
    assert made == [1]

    def broken() -> int:
        made.append(2)
        raise OSError(5, "Input/output error")

    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            subject.shared("y", broken)
    assert made == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"reads": ""}, "reads is empty"),
        ({"level": "deep"}, "level 'deep' is not one of quick, standard, transfer, full"),
        ({"severity": "warn"}, "a gate that blocks has the severity fail"),
        ({"severity": "grave"}, "severity 'grave' is not one of fail, warn, info"),
        ({"vendors": ("nvdia",)}, r"vendors \('nvdia',\) are not a tuple out of nvidia, amd, intel"),
        ({"vendors": "nvidia"}, "vendors 'nvidia' are not a tuple"),
    ],
)
def test_a_description_with_holes_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        gate_of(lambda subject: [], **wrong)


def test_an_id_is_made_of_words() -> None:
    with pytest.raises(ValueError, match="lower-case words with dots"):
        gate_of(lambda subject: [], "Gate")


def test_somebody_wants_a_vendor_by_promise_or_driver_software() -> None:
    machine = a_machine().with_gpu("rtx4090", driver="nouveau")
    assert subject_of(machine, promised={"cuda": 2}).wanted("nvidia") == "cuda:2 is promised"
    assert subject_of(machine, needed=frozenset({"nvidia"})).wanted("nvidia") is None
    library = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert subject_of(machine.with_file(library, b"\x7fELF")).wanted("nvidia") == f"{library} is installed"
    wheel = "/opt/venv/lib/python3.12/site-packages/nvidia/cuda/lib/libcuda.so.1"
    assert subject_of(machine.with_file(wheel, b"\x7fELF")).wanted("nvidia") is None
