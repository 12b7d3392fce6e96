"""Whole steps of training in one kernel, generated from the plan of a step.

- problem.py reads from a plan what is trained; sharding.py says how thread blocks share it.
- phases.py has the phases of a step, schedule.py their order. Everything else walks that list:
  cost.py (expected cycles), buffers.py (receive buffers), layout.py (memory), stamps.py and
  tracing.py (traces), report.py (words), and the emitters.
- choose.py searches the sharding that is fastest on a chip.py; spelling.py takes one as named.
- source.py emits the kernel: steps.py dispatches its phases to inputs.py, gemms.py, exchanges.py,
  loss.py and updates.py, which write calls of the templates in ptx/persistent/*.cuh by writer.py.
"""
