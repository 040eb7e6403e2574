"""What is sent to a vendor process: execnet's own base and the modules of `child`, as source.

Sent, and not put on its path: the folder where this package lies holds all packages of pytest's interpreter, of which
an interpreter with other versions of Python, NumPy or a vendor's framework must not see one.
"""

from __future__ import annotations

import functools
import json
import os

__all__ = ["PACKAGE", "SERVE", "boot_source", "bundle"]

PACKAGE = "_gpucoexist_child"
MODULES = ("arrays", "payload", "carrier", "lookup", "inside", "serving")
"""In the order in which they are executed: each imports only those before it."""
GATEWAY = "execnet_base"
SERVE = f"import sys\nsys.modules['{PACKAGE}.serving'].serve(channel, *channel.receive())"
"""What the gateway executes; the arguments of `serve` come first on its channel."""

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child")


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


def _source(name: str) -> str:
    with open(os.path.join(_FOLDER, f"{name}.py"), encoding="utf-8") as file:
        return file.read()
