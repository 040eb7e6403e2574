"""Programs that ask vendor libraries, each run in a process of its own with a deadline.

A helper is a module with `answer(request)`. It returns what JSON can carry, or raises one of `helpers.protocol`.
"""
