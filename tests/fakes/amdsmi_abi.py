"""Write the C side of `amdsmi`'s ctypes wrapper: the wheel carries no header, and the structures differ by version.

    python amdsmi_abi.py symbols WRAPPER.py        every function that the wrapper binds, as weak C stubs
    python amdsmi_abi.py header PACKAGE_PARENT     the structures and constants of the wrapper, as a C header

The second imports the real wrapper, so a library with the stubs has to be where the wrapper looks (`ROCM_PATH`). Each
structure comes with assertions on its size and offsets: what gcc lays out is what ctypes will read.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import sys
from pathlib import Path
from typing import Any

_SCALARS: dict[Any, str] = {
    ctypes.c_bool: "bool",
    ctypes.c_char: "char",
    ctypes.c_double: "double",
    ctypes.c_float: "float",
    ctypes.c_int8: "int8_t",
    ctypes.c_int16: "int16_t",
    ctypes.c_int32: "int32_t",
    ctypes.c_int64: "int64_t",
    ctypes.c_uint8: "uint8_t",
    ctypes.c_uint16: "uint16_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_uint64: "uint64_t",
}

STUB = (
    "__attribute__((weak)) EXPORT int {name}(void) "
    '{{ int status = enter("amd", LIBRARY, "{name}"); return status ? status : 2; }}'
)


def stubs(wrapper: str) -> str:
    """Define every function that the wrapper binds; 2 is AMDSMI_STATUS_NOT_SUPPORTED."""
    names = sorted(set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", wrapper)))
    return "\n".join(['#include "description.h"', *(STUB.format(name=name) for name in names), ""])


class Header:
    """A C header out of ctypes structures, each once and after those that it contains."""

    def __init__(self) -> None:
        self.lines = ["#include <stdbool.h>", "#include <stddef.h>", "#include <stdint.h>"]
        self._names: dict[type, str] = {}

    def add(self, structure: Any) -> str:
        """Define a structure or union and return its C name."""
        if structure in self._names:
            return self._names[structure]
        name = re.sub(r"^(struct|union)_", "", structure.__name__)
        while name in self._names.values():
            name += "_"
        self._names[structure] = name
        fields = getattr(structure, "_fields_", [])
        body = [f"    {self._declare(kind, field)}{f' : {bits[0]}' if bits else ''};" for field, kind, *bits in fields]
        keyword = "union" if issubclass(structure, ctypes.Union) else "struct"
        self.lines += [f"typedef {keyword} __attribute__((packed)) {{", *body, f"}} {name};"]
        self.lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");')
        for field, _kind, *bits in fields:
            if not bits:
                offset = getattr(structure, field).offset
                self.lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");')
                self.lines.append(f"#define HAS_{name}_{field} 1")
        return name

    def _declare(self, kind: Any, name: str) -> str:
        if kind in _SCALARS:
            return f"{_SCALARS[kind]} {name}"
        if issubclass(kind, ctypes.Array):
            return self._declare(kind._type_, f"{name}[{kind._length_}]")
        if issubclass(kind, (ctypes.Structure, ctypes.Union)):
            return f"{self.add(kind)} {name}"
        return f"void *{name}"


def header(package_parent: str) -> str:
    """Describe the wrapper's structures and constants."""
    sys.path.insert(0, package_parent)
    wrapper = importlib.import_module("amdsmi.amdsmi_wrapper")
    out = Header()
    for name, value in sorted(vars(wrapper).items()):
        if isinstance(value, type) and issubclass(value, (ctypes.Structure, ctypes.Union)) and "amdsmi" in name:
            out.add(value)
    constants = [
        f"#define {name} {value}"
        for name, value in sorted(vars(wrapper).items())
        if name.startswith("AMDSMI_") and isinstance(value, int)
    ]
    return "\n".join([*out.lines, *constants, ""])


if __name__ == "__main__":
    what, where = sys.argv[1:]
    print(stubs(Path(where).read_text(encoding="utf-8")) if what == "symbols" else header(where))
