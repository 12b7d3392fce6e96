"""From CUDA C to something loadable: signatures read from the source, run-time compilation, the
cache of what was compiled, and what compiled kernels use and prove.

Importing this package is cheap; nothing of CUDA is loaded before a kernel has to be compiled.
"""
