"""CUDA Graphs built node by node through the driver. Nothing here knows of training."""

from rawnn.graphs.graph import ExecutableGraph, Graph

__all__ = ["ExecutableGraph", "Graph"]
