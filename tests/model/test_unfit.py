"""A device that gates took out is neither missing nor replaced by what nobody meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.machine import Usable
from pytest_gpucoexist.model.matching import match, would_do
from pytest_gpucoexist.model.plan import decide
from pytest_gpucoexist.model.quarantine import quarantined
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.model.requirement import Need, combine
from tests.machines import amd, apu, machine, masked, nvidia, torch

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu, Machine


def need(*names: str, **kwargs: Any) -> Need:
    return combine([(name, (), kwargs) for name in names])


def without(unfit: Gpu, *others: Gpu, **changes: Any) -> Machine:
    """A machine on which `unfit` smokes."""
    return quarantined(machine(unfit, *others, **changes), {unfit.key: "suite.nose: it smokes"})


def outcome(wanted: Need, on: Machine) -> tuple[str, str]:
    decision = decide(wanted, on, stand_ins=True)
    return decision.outcome, decision.reason or ""


def test_two_on_one_node_fail_when_the_second_is_unfit() -> None:
    """A third card on another node makes their number right, and the machine no better."""
    on = without(nvidia(0), nvidia(1), nvidia(2, numa_node=1))
    said, reason = outcome(need("cuda", count=2, same_node=True), on)
    assert said == "unfit"
    assert "0000:41:00.0 (suite.nose: it smokes)" in reason
    assert outcome(need("cuda", count=3, same_node=True), on)[0] == "missing", "it never had three on one node"


def test_marks_that_together_need_the_unfit_card_fail() -> None:
    wanted = Need(requirements=(*need("cuda").requirements, *need("gpu", vendor="nvidia").requirements))
    said, reason = outcome(wanted, without(nvidia(0), nvidia(1)))
    assert said == "unfit"
    assert "found only 0000:42:00.0 for all of them, 0000:41:00.0 (suite.nose: it smokes)" in reason
    assert outcome(wanted, machine(nvidia(0)))[0] == "missing"


def test_an_apu_does_not_stand_in_for_an_unfit_card() -> None:
    said, reason = outcome(need("rocm"), without(amd(), apu()))
    assert said == "unfit"
    assert "integrated: not counted beside a discrete GPU" in reason
    card, mask = masked(amd(), "ROCR_VISIBLE_DEVICES", "1", "rocr")
    assert match(need("rocm"), machine(card, apu(), masks=(mask,))).satisfied, "a caller who hides the card wants it so"


def test_hidden_and_not_granted_is_withheld_all_the_same() -> None:
    card, mask = masked(nvidia(granted=False), "CUDA_VISIBLE_DEVICES", "", "cuda")
    assert outcome(need("cuda"), machine(card, masks=(mask,)))[0] == "not_granted"


def test_what_would_do_includes_what_a_gate_took_out() -> None:
    on = without(nvidia(0), nvidia(1), amd())
    assert would_do(need("gpu"), on) == ("0000:41:00.0", "0000:42:00.0", "0000:c1:00.0")
    assert would_do(need("cuda", count=2), on) == ("0000:41:00.0", "0000:42:00.0")
    assert would_do(need("cuda", count=3), on) == ()
    assert would_do(need("gpu", arch="gfx90a"), on) == ("0000:c1:00.0",)
    assert would_do(need("gpu", framework="torch"), on) == ()
    assert would_do(need("gpu", framework="torch"), without(nvidia(0), runtimes=(torch("2.9", "nvidia"),)))


def test_an_unfit_card_that_only_has_instances_to_give_is_no_device_for_each_gpu() -> None:
    fact = Fact(source="features.mig", status="unsupported", detail="MIG is on: CUDA sees its instances")
    card = nvidia(0, features={"mig": True}, usable=Usable(), facts={"usable.cuda": fact})
    part = nvidia(1, partition="mig1.0", pci_address=card.pci_address, id="nvidia1")
    on = without(card, part)
    assert would_do(need("cuda"), on) == ("0000:41:00.0/mig1.0",)
    assert outcome(need("cuda"), on)[0] == "unfit"


def test_the_fate_of_a_card_is_that_of_partitions_found_later() -> None:
    part = nvidia(0, partition="MIG-1", uuid="MIG-1")
    (judged,) = quarantined(machine(part), {"0000:41:00.0": "it smokes"}).gpus
    assert not judged.fit
    hidden = nvidia(0, partition="MIG-2", uuid="MIG-2", visible=False)
    assert [gpu.fit for gpu in quarantined(machine(part, hidden), {part.key: "it smokes"}).gpus] == [False, True]
