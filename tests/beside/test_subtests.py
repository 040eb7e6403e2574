"""Subtests, pytest's own (9.0) and unittest's: one record for the test, and a skipped part is no skipped test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NVIDIA1, workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

needs_subtests = pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 9.0 brought the fixture subtests")


@needs_subtests
@workers
def test_the_fixture(suite: Suite, workers: int) -> None:
    suite.pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.cuda(memory="40 GiB")

        def test_all_pass(gpu, subtests):
            for n in range(3):
                with subtests.test(n=n):
                    assert gpu.vendor == "nvidia"

        def test_one_fails(gpu, subtests):
            for n in range(3):
                with subtests.test(n=n):
                    assert n != 1

        def test_one_is_skipped(gpu, subtests):
            with subtests.test("framework"):
                pytest.importorskip("tensorrt")
            with subtests.test("the rest"):
                assert gpu
        """
    )
    result = suite.run("--gpu-report=report.json", "--junitxml=junit.xml", "--gpu-expect-skips=0", workers=workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "expected 0" not in result.stdout.str()
    records = suite.records()
    assert {name: test["outcome"] for name, test in records.items()} == {
        "test_all_pass": "passed",
        "test_one_fails": "failed",
        "test_one_is_skipped": "passed",
    }
    for test in records.values():
        assert (test["gpu_outcome"], test["reason"]) == ("simulated", None)
        assert [device["key"] for device in test["devices"]] == [NVIDIA1]
    assert suite.held() == {}


@workers
def test_unittest(suite: Suite, workers: int) -> None:
    suite.pytester.makepyfile(
        """
        import unittest
        import pytest
        from pytest_gpucoexist import current_gpu

        @pytest.mark.cuda(memory="40 GiB")
        class TestCard(unittest.TestCase):
            def test_all_pass(self):
                for n in range(3):
                    with self.subTest(n=n):
                        self.assertEqual(current_gpu().vendor, "nvidia")

            def test_one_fails(self):
                for n in range(3):
                    with self.subTest(n=n):
                        self.assertNotEqual(n, 1)

            def test_one_is_skipped(self):
                with self.subTest("framework"):
                    self.skipTest("needs CuPy")
                with self.subTest("the rest"):
                    self.assertIsNotNone(current_gpu())

        @pytest.mark.cuda(count=3)
        class TestMissing(unittest.TestCase):
            @classmethod
            def setUpClass(cls): raise AssertionError("not before it is known that there is a device")

            def test_never(self): pass
        """
    )
    result = suite.run("--gpu-report=report.json", "--gpu-expect-skips=1", workers=workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "expected 1" not in result.stdout.str()
    records = suite.records()
    assert records["test_all_pass"]["outcome"] == "passed"
    assert records["test_one_fails"]["outcome"] == "failed"
    assert records["test_never"]["gpu_outcome"] == "missing"
    for name in ("test_all_pass", "test_one_fails", "test_one_is_skipped"):
        assert [device["key"] for device in records[name]["devices"]] == [NVIDIA1]
    assert suite.held() == {}
