"""What tests of such a library look like with the plugin."""

from __future__ import annotations

import subprocess
import sys
import unittest

import pytest

import pytest_gpucoexist


def test_needs_no_gpu():
    assert sum(range(5)) == 10


@pytest.mark.cuda(arch=">=8.0", memory="8 GiB")
def test_add_on_nvidia(gpu, vector):
    assert gpu.vendor == "nvidia"
    assert list((vector(gpu, [1, 2]) + vector(gpu, [3, 4])).values) == [4, 6]


@pytest.mark.rocm
def test_add_on_amd(gpu, vector):
    assert gpu.arch.startswith("gfx")
    assert list((vector(gpu, [1, 2]) + vector(gpu, [3, 4])).values) == [4, 6]


@pytest.mark.cross_vendor
def test_staging_between_vendors(gpu_pair, vector):
    nvidia, amd = gpu_pair
    x, y = vector(nvidia, [1.5]), vector(amd, [2.5])
    with pytest.raises(ValueError, match="not one device"):
        x + y
    assert list((x.staged_to(amd) + y).values) == [4.0]


def test_on_each_device(each_gpu, vector):
    assert vector(each_gpu, [0.0] * 4).gpu.key == each_gpu.key


@pytest.mark.gpu(vendor="nvidia", count=2)
def test_two_devices_of_one_vendor(gpus):
    first, second = gpus
    assert first.key != second.key


@pytest.mark.rocm
def test_child_process_sees_only_the_leased_device(gpu, gpu_env):
    code = "import os; print(os.environ['HIP_VISIBLE_DEVICES'], os.environ['ROCR_VISIBLE_DEVICES'])"
    done = subprocess.run([sys.executable, "-c", code], env=gpu_env, capture_output=True, text=True, check=True)
    hip, rocr = done.stdout.split()
    assert hip == "0"
    assert rocr


@pytest.mark.cuda
def test_near_its_memory(gpu, numa_node):
    assert numa_node == gpu.numa_node


@pytest.mark.cuda
class TestOldStyle(unittest.TestCase):
    def test_device_without_fixtures(self):
        self.assertEqual(pytest_gpucoexist.current_gpu().vendor, "nvidia")


@pytest.mark.rocm(arch="gfx90a")
def test_matrix_cores_of_mi200(gpu):
    assert gpu.arch == "gfx90a"
