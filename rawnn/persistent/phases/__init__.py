"""The kinds of phases of a training step, each in one file: what a thread block of the persistent
kernel does between two of its barriers, or beside another phase.

- A phase says all about itself (phase.py has the methods): which buffers it reads and writes, its
  calls of the templates in ptx/persistent/*.cuh, the cycles that it takes, its stamps, its words,
  and its meaning in NumPy. What walks a schedule asks the phase, and knows no kinds.
- Phases name buffers of a block: `x` (inputs), `w1`, `b1` (weights, biases), `a1` (activations of
  boundary 1), `z1` (pre-activations, then their gradients), `logits`, `y` (labels or targets),
  `statistics` (of a softmax), `tallies` (of the loss), `overflow` (whether a gradient was too large
  for fp16), `scratch`. layout.py says where they lie.
- schedule.py puts the phases in order. Barriers of a block follow from what they read and write.

docs/persistent-kernel.md says how a kind is added.
"""
