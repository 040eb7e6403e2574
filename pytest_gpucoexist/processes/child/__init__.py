"""What runs inside a vendor process. It is sent there as source text: the standard library and its neighbours only.

The vendor's interpreter need not have this package, nor the version of Python that pytest runs on. NumPy is imported
where an array is met. `pytest_gpucoexist.processes.bundle` lists the modules in the order in which they are executed.
"""
