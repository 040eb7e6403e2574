"""`import tests.transfer.needs_numpy` above other imports of this project: the module skips where NumPy is missing."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy", reason="needs numpy")
