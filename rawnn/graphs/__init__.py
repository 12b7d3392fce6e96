"""CUDA graphs built node by node through the driver, and the graphs of plans."""

from rawnn.graphs.graph import ExecutableGraph, Graph

__all__ = ["ExecutableGraph", "Graph"]
