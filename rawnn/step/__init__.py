"""The training step as data: tensors, ops, plans, and the edges that reads and writes require.

Nothing here knows of a driver; the host runner executes a plan with NumPy alone. The package
imports none of its modules: losses need ops, and plans need losses.
"""
