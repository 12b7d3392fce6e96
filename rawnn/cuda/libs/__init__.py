"""NVIDIA's libraries: GEMMs by cuBLASLt, softmax by cuDNN, collectives by NCCL."""
