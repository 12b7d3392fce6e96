"""The GPU, or a simulated one: the driver, compiled kernels, NVIDIA's libraries."""
