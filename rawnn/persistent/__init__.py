"""Whole steps of training in one kernel, generated from the plan of a step.

- problem.py reads from a plan what is trained; sharding.py says how thread blocks share it.
- phases/ has the kinds of phases of a step, schedule.py their order. Everything else walks that
  list and asks the phases: cost.py (expected cycles), buffers.py (receive buffers), layout.py
  (memory), stamps.py and tracing.py (traces), report.py (words), steps.py (C++), interpreter.py
  (NumPy).
- choose.py searches the sharding that is fastest on a chip.py; spelling.py takes one as named.
- source.py emits the kernel by writer.py: what stands around the steps, and the steps.
"""
