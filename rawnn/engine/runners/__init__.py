"""Runners execute a plan: on the host with NumPy, on a stream, or as CUDA graphs."""
