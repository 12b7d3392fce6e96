"""The public names of the export to ONNX."""

from rawnn.engine.export import (
    INPUT_TYPES,
    IR_VERSION,
    OPSET,
    InputType,
    export_onnx,
    lost_in_float32,
    onnx_model,
)

__all__ = ["INPUT_TYPES", "IR_VERSION", "OPSET", "InputType", "export_onnx", "lost_in_float32",
           "onnx_model"]
