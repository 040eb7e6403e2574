"""Write what the fakes of CUDA's driver API and HIP's runtime API need to know of their vendors' ABI, as C headers.

    python runtime_abi.py cuda INCLUDE        names of errors and versions of functions, out of NVIDIA's headers
    python runtime_abi.py hip                 structures and constants, out of the installed rocm-bindings-hip

AMD publishes no header on PyPI, but the bindings carry what they were compiled against: declarations in Cython
(`cyhip.pxd`) and the values of enumerations.
"""

from __future__ import annotations

import enum
import importlib
import re
import sys
from pathlib import Path

_ERROR = re.compile(r"^\s*(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)", re.MULTILINE)
_VERSIONED = re.compile(r"\bPFN_(cu\w+?)_v(\d+)\)")

_HIP_STRUCTURES = {
    "hipUUID_t": "cdef struct hipUUID_t",
    "hipDeviceArch_t": "ctypedef struct hipDeviceArch_t",
    "hipDeviceProp_t": 'cdef struct hipDeviceProp_t "hipDeviceProp_tR0600"',
    "hipPointerAttribute_t": "cdef struct hipPointerAttribute_t",
}

# hipDeviceProp_tR0600 as ROCm 6 and later lay it out (hip_runtime_api.h): a layout that differs was not understood.
_HIP_PROPERTIES_BYTES = 1472


def cuda(include: Path) -> str:
    """Return tables of errors, and of the symbol that a function has in each version of CUDA.

    The n-th version in which a function's prototype changed is its n-th ABI: `cuMemAlloc` of CUDA 2.0,
    `cuMemAlloc_v2` of 3.2.
    """
    errors = _ERROR.findall((include / "cuda.h").read_text(encoding="utf-8"))
    versions: dict[str, set[int]] = {}
    for name, version in _VERSIONED.findall((include / "cudaTypedefs.h").read_text(encoding="utf-8")):
        versions.setdefault(name, set()).add(int(version))
    lines = ["static const struct { int code; const char *name, *text; } ERRORS[] = {"]
    for name, code in errors:
        text = "no error" if name == "CUDA_SUCCESS" else name.removeprefix("CUDA_ERROR_").lower().replace("_", " ")
        lines.append(f'    {{{code}, "{name}", "{text}"}},')
    lines += ["};", "static const struct { const char *name; int version; const char *symbol; } VERSIONS[] = {"]
    for name, known in sorted(versions.items()):
        for at, version in enumerate(sorted(known)):
            lines.append(f'    {{"{name}", {version}, "{name}{f"_v{at + 1}" if at else ""}"}},')
    return "\n".join([*lines, "};", ""])


def hip() -> str:
    """Return HIP's structures, and each enumeration and flag of the bindings as a macro."""
    bindings = importlib.import_module("rocm.bindings.hip")
    assert bindings.__file__ is not None
    declarations = (Path(bindings.__file__).parent / "cyhip.pxd").read_text(encoding="utf-8")
    lines = ["#include <stddef.h>", "typedef int hipMemoryType;"]
    for name, head in _HIP_STRUCTURES.items():
        found = re.search(re.escape(head) + r":\n((?: {8}.*\n)+)", declarations)
        if found is None:
            raise LookupError(f"cyhip.pxd declares no {name}")
        # The features of an architecture are one bit each; Cython cannot say so.
        bits = " : 1" if name == "hipDeviceArch_t" else ""
        fields = [f"    {line.strip()}{bits};" for line in found.group(1).splitlines()]
        lines += ["typedef struct {", *fields, f"}} {name};"]
    lines.append(f'_Static_assert(sizeof(hipDeviceProp_t) == {_HIP_PROPERTIES_BYTES}, "hipDeviceProp_tR0600");')
    errors: dict[int, str] = {}
    for name, value in sorted(vars(bindings).items()):
        if isinstance(value, int) and re.match(r"hip[A-Z]\w+$", name):
            lines.append(f"#define {name} {value}")
        elif isinstance(value, type) and issubclass(value, enum.IntEnum) and name.startswith("hip"):
            lines += [f"#define {member.name} {member.value}" for member in value]
            if name == "hipError_t":
                errors = {member.value: member.name for member in value}
    lines.append("static const struct { int code; const char *name; } HIP_ERRORS[] = {")
    lines += [f'    {{{code}, "{name}"}},' for code, name in sorted(errors.items())]
    return "\n".join([*lines, "};", ""])


if __name__ == "__main__":
    print(cuda(Path(sys.argv[2])) if sys.argv[1] == "cuda" else hip())
