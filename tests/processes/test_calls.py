"""Calls into a real process: results, what was written, what was raised, and what cannot be called."""

from __future__ import annotations

import gc
import logging
import math
import os
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import (
    VendorCallError,
    VendorEndedError,
    VendorFunctionError,
    VendorPayloadError,
    VendorProcessError,
)
from tests.processes import called

if TYPE_CHECKING:
    from pytest_gpucoexist.processes.process import VendorProcess


def test_a_function_of_a_test_module_runs_in_another_process_from_the_same_file(process: VendorProcess) -> None:
    there = process.run(called.where)
    assert there["pid"] == process.pid != os.getpid()
    assert there["name"] == called.__name__
    assert os.path.samefile(there["file"], called.__file__)
    assert there["executable"] == sys.executable


def test_arguments_and_results(process: VendorProcess) -> None:
    value = [None, -(2**100), {"a": (1.5, b"\xff", {3, 4})}, "\udc80"]
    assert process.run(called.same, value) == value
    assert process.run(called.same, 1, "two", [3]) == (1, "two", [3])
    assert process.run(math.hypot, 3, 4) == 5.0
    assert process.run(called.Tools.double, 21) == 42
    large = "x" * 10_000_000
    assert process.run(called.same, large) == large


def test_ten_mebibytes_of_an_array_go_there_and_back(process: VendorProcess) -> None:
    np = pytest.importorskip("numpy", reason="needs NumPy")
    array = np.random.default_rng(5).integers(0, 2**63, 10 * 2**17, dtype=np.uint64).reshape(1024, -1)
    assert array.nbytes == 10 * 2**20
    came = process.run(called.same, array)
    assert came.dtype == array.dtype
    assert (came == array).all()
    assert (process.run(called.return_an_array, 10 * 2**17) == np.arange(10 * 2**17)).all()
    assert process.run(called.described, np.asfortranarray(array)) == ("uint64", array.shape, False, True)


def test_what_was_changed_on_the_way_is_said(process: VendorProcess) -> None:
    np = pytest.importorskip("numpy", reason="needs NumPy")
    result = process.call(called.same, np.arange(10)[::2])
    assert result.value.tolist() == [0, 2, 4, 6, 8]
    assert ["the arguments[0] was made contiguous" in note for note in result.notes] == [True]
    assert process.records[-1].notes == result.notes


def test_what_is_written_comes_with_the_result(process: VendorProcess) -> None:
    first = process.call(called.speak, "grün", "\udcff surrogate")
    assert (first.value, first.stdout, first.stderr) == ("spoken", "grün\n", "\\udcff surrogate\n")
    second = process.call(called.speak, "two", "")
    assert (second.stdout, second.stderr) == ("two\n", "\n")
    assert [record.stdout for record in process.records] == ["grün\n", "two\n"]


def test_everything_that_writes_is_heard(process: VendorProcess) -> None:
    result = process.call(called.speak_everywhere)
    for word in ("by print", "by write", "by printf", "by a child"):
        assert word in result.stdout
    assert "by logging" in result.stderr


def test_a_flood_is_cut_in_the_middle_and_blocks_nobody(process: VendorProcess) -> None:
    result = process.call(called.flood, 90 * 2**20)
    assert result.value == 90 * 2**20
    assert result.stdout.startswith("xxxx")
    assert result.stdout.endswith("the end\n")
    assert "bytes left out" in result.stdout
    assert len(result.stdout) < 2**20
    assert process.call(called.speak, "after", "").stdout == "after\n"


def test_standard_input_is_empty(process: VendorProcess) -> None:
    assert process.run(called.read_stdin) == ""


def test_an_exception_comes_back_with_its_traceback(process: VendorProcess) -> None:
    with pytest.raises(VendorCallError) as caught:
        process.run(called.fail, "what was wrong")
    error = caught.value
    assert (error.remote_type, error.remote_text) == ("builtins.ValueError", "what was wrong")
    assert "KeyError: 'absent'" in error.remote_traceback
    assert "direct cause" in error.remote_traceback
    assert "in deeper" in error.remote_traceback
    assert "raise ValueError(text) from error" in error.remote_traceback
    assert "serving.py" not in error.remote_traceback
    assert "tests.processes.called.fail raised builtins.ValueError: what was wrong" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.remote_traceback) == (str(error), error.remote_traceback)
    assert process.run(math.sqrt, 4) == 2.0


def test_exceptions_that_resist(process: VendorProcess) -> None:
    with pytest.raises(VendorCallError, match="its text cannot be had") as caught:
        process.run(called.fail_oddly)
    assert caught.value.remote_type == "tests.processes.called.OddError"
    with pytest.raises(VendorCallError) as left:
        process.run(called.leave, 3)
    assert (left.value.remote_type, left.value.remote_text) == ("builtins.SystemExit", "3")
    with pytest.raises(VendorCallError) as arguments:
        process.run(called.fail)
    assert arguments.value.remote_type == "builtins.TypeError"
    with pytest.raises(VendorCallError) as long:
        process.run(called.fail, "long " * 100_000)
    assert "characters left out" in long.value.remote_text
    assert process.run(math.sqrt, 4) == 2.0


def test_what_was_written_before_an_exception_is_with_it(process: VendorProcess) -> None:
    process.run(called.set_variable, "X", "1")
    with pytest.raises(VendorCallError) as caught:
        process.run(called.speak, "out")
    assert caught.value.stdout == ""
    assert process.records[-1].outcome == "raised"


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_result_that_cannot_travel_is_named(process: VendorProcess, size: int) -> None:
    with pytest.raises(VendorPayloadError, match=r"the result\['wrong'\]\[0\] is a _thread.lock"):
        process.run(called.return_an_object)
    assert process.run(called.same, "x" * size) == "x" * size


def test_an_argument_that_cannot_travel_is_named_and_nothing_is_called(process: VendorProcess) -> None:
    with pytest.raises(VendorPayloadError, match=r"the arguments\[1\]\['here'\] is a _thread.lock"):
        process.run(called.same, "x" * 100_000, {"here": threading.Lock()})
    assert process.records == []
    assert process.run(called.same, 1) == 1


def local() -> Any:
    return lambda: None


class Instance:
    def method(self) -> None:
        """Do nothing."""


def wrapped() -> None:
    """Be replaced."""


original, wrapped = wrapped, local


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, "defined inside another function"),
        (local(), "move it to the module's level"),
        (Instance().method, "is not this function"),
        (original, "is not this function"),
        (logging.getLogger().info, "is not this function"),
        (3, "is no function of a module"),
        ("math.sqrt", "is no function of a module"),
    ],
    ids=["lambda", "local", "method", "wrapped", "bound", "number", "text"],
)
def test_what_is_no_function_of_a_module_is_refused(process: VendorProcess, function: Any, words: str) -> None:
    with pytest.raises(VendorFunctionError, match=words):
        process.run(function)


@pytest.mark.parametrize("deadline_s", [0, -1, float("nan"), float("inf")])
def test_a_deadline_is_a_positive_number(process: VendorProcess, deadline_s: float) -> None:
    with pytest.raises(VendorProcessError, match="a deadline is a positive number of seconds"):
        process.run(called.same, 1, deadline_s=deadline_s)
    assert process.run(called.same, 1) == 1


def test_the_program_itself_is_refused(process: VendorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(called.same, "__module__", "__main__")
    with pytest.raises(VendorFunctionError, match="move it to a module of its own"):
        process.run(called.same)


def test_calls_of_several_threads_take_turns(process: VendorProcess) -> None:
    results: dict[int, Any] = {}

    def ask(number: int) -> None:
        results[number] = process.run(called.same, [number] * 10_000)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [number] * 10_000 for number in range(8)}


def test_a_function_that_forks_and_returns_twice_answers_once(process: VendorProcess) -> None:
    assert process.run(called.fork_and_return) == "parent"
    assert process.run(called.same, 1) == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_of_this_process_leaves_the_vendor_process_alone(process: VendorProcess) -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            process.close()
            try:
                process.run(called.same, 1)
            except VendorProcessError as error:
                os.write(writing, str(error).encode())
            process._control = None
            gc.collect()
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as said:
        assert "belongs to process" in said.read()
    assert process.run(called.same, 1) == 1


def test_after_its_end_nothing_is_asked_of_it(process: VendorProcess) -> None:
    ending = process.close("the test is over")
    assert ending.killed_for == "the test is over"
    assert process.ending == process.close() == ending
    with pytest.raises(VendorEndedError, match=r"was not asked: process \d+ was killed: the test is over"):
        process.run(called.same, 1)


def test_it_has_its_own_group_and_only_its_own_descriptors(process: VendorProcess) -> None:
    with open(os.devnull, "rb") as file:
        os.set_inheritable(file.fileno(), True)
        pid, group, session = process.run(called.group)
        assert pid == group == session == process.pid
        assert len(process.run(called.open_descriptors)) <= 8  # three standard ones, control twice, two more, a listing
