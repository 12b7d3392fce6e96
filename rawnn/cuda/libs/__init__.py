"""NVIDIA's libraries beside our own kernels: cuBLASLt matrix products and cuDNN's softmax."""
