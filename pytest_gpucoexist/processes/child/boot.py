"""The first code of a vendor process, given to its interpreter as `-c` text: take the bundle, begin to serve.

Arguments: the descriptors of the bundle (JSON in a memfd), of control, of the socket for descriptors, of the trace.
The bundle's modules become a package of their own, and nothing else of this process's imports is touched. Any
Python since 3.6 can read this file, to say that it is too old.
"""

import json
import os
import sys
import types


def main() -> None:
    """Make the package and serve."""
    if sys.version_info < (3, 10):  # noqa: UP036 - it is not pytest's own interpreter that reads this
        sys.exit(f"a vendor process needs Python 3.10 or newer; {sys.executable} is {sys.version.split()[0]}")
    bundle_fd, control_fd, descriptors_fd, trace_fd = (int(each) for each in sys.argv[1:5])
    sys.argv[:] = [""]
    for each in (control_fd, descriptors_fd, trace_fd):
        os.set_inheritable(each, False)
    with os.fdopen(bundle_fd, "rb") as file:
        bundle = json.load(file)
    package = types.ModuleType(bundle["package"])
    package.__path__ = []
    sys.modules[bundle["package"]] = package
    for name, source, file_name in bundle["modules"]:
        module = types.ModuleType(bundle["package"] + "." + name)
        module.__package__ = bundle["package"]
        module.__file__ = file_name
        sys.modules[module.__name__] = module
        exec(compile(source, file_name, "exec"), module.__dict__)
        setattr(package, name, module)
    base = getattr(package, bundle["gateway"])
    model = base.get_execmodel("thread")
    io = base.Popen2IO(os.fdopen(os.dup(control_fd), "wb"), os.fdopen(control_fd, "rb"), model)
    io.write(b"1")
    base.serve(io, id=bundle["id"])


if __name__ == "__main__":
    main()
