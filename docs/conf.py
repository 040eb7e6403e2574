"""Sphinx configuration."""

from __future__ import annotations

from pytest_gpucoexist import __version__

project = "pytest-gpucoexist"
author = "The pytest-gpucoexist maintainers"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"pytest-gpucoexist {__version__}"
exclude_patterns = ["_build"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
nitpick_ignore_regex = [("py:.*", r".*")]  # standard library types have no inventory here: the build reads no network
