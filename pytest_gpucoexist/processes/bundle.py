"""What is sent to a vendor process: execnet's own base and the modules of `child`, as source.

Sent, and not put on its path: the folder where this package lies holds all packages of pytest's interpreter, of which
an interpreter with other versions of Python, NumPy or a vendor's framework must not see one.
"""

from __future__ import annotations

import functools
import json
import os
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.processes.references import Reference

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LOAD", "PACKAGE", "SERVE", "boot_source", "bundle", "shipment"]

PACKAGE = "_gpucoexist_child"
MODULES = ("arrays", "payload", "carrier", "lookup", "inside", "shipped", "serving")
"""In the order in which they are executed: each imports only those before it."""
GATEWAY = "execnet_base"
LOAD = Reference(module=f"{PACKAGE}.shipped", function="load", file=None)
"""What takes a shipment there."""
SERVE = f"import sys\nsys.modules['{PACKAGE}.serving'].serve(channel, *channel.receive())"
"""What the gateway executes; the arguments of `serve` come first on its channel."""

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child")
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OWN = __name__.partition(".")[0]


@functools.cache
def bundle() -> bytes:
    """Return the bundle that `child/boot.py` reads. Raises ImportError where execnet is not installed."""
    import inspect

    from execnet import gateway_base

    modules = [(GATEWAY, inspect.getsource(gateway_base), inspect.getsourcefile(gateway_base))]
    modules += [(name, _source(name), os.path.join(_FOLDER, f"{name}.py")) for name in MODULES]
    whole = {"package": PACKAGE, "gateway": GATEWAY, "id": "gpucoexist-worker", "modules": modules}
    return json.dumps(whole).encode()


@functools.cache
def boot_source() -> str:
    """Return the text for `-c`, which would have the current folder come before the standard library."""
    return f"import sys\nif sys.path[:1] == ['']: del sys.path[0]\n{_source('boot')}"


def shipment(modules: Sequence[str], package: str) -> list[tuple[str, str, str]]:
    """Return modules of this package (`errors`, `transfer.engine`) for `LOAD`, as modules of a package of that name.

    Their imports of this package become imports of that one, line by line as before.
    """
    found = [(package, "", f"<{package}>")]
    for name in modules:
        path = os.path.join(_ROOT, *name.split("."))
        file = f"{path}.py" if os.path.isfile(f"{path}.py") else os.path.join(path, "__init__.py")
        with open(file, encoding="utf-8") as opened:
            source = re.sub(rf"\b{_OWN}\b", package, opened.read())
        found.append((f"{package}.{name}", source, file))
    return found


def _source(name: str) -> str:
    with open(os.path.join(_FOLDER, f"{name}.py"), encoding="utf-8") as file:
        return file.read()
