"""The driver layer: device, memory, streams, events, launches. It knows nothing of training."""
