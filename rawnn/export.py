"""The public names of the export to ONNX."""

from rawnn.engine.export import *  # noqa: F403
