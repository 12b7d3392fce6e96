"""Whole steps of training in one kernel, generated from the plan of a step.

problem.py reads from a plan what is trained, sharding.py says how blocks share the layers,
tiles.py and cost.py what that takes in cycles, layout.py where everything lies in shared memory,
choose.py which sharding is best on a chip, source.py, steps.py and updates.py write the kernel
(a list of calls of the templates in ptx/onchip_*.cuh), and report.py says all that in words.
"""
