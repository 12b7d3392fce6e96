"""From CUDA C to loadable code: signatures read from the source, run-time compilation, the cache of
compiled kernels, and their resources and proofs.

Importing this package is cheap; nothing of CUDA is loaded before a kernel has to be compiled.
"""
