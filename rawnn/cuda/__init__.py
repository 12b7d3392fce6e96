"""The driver layer: device, memory, streams, events, launches. It is independent of training."""
