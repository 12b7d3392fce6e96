"""The kinds of ops and their NumPy references: what each CUDA kernel is checked against.

Operands are views without padding, of float32 (or float64, for the oracle): what an op wrote is
rounded to its tensor's storage type behind it. Shapes: B rows of a batch, F features, C outputs.
`s = cursor + offset` is the step in the epoch. Losses define their ops in rawnn/losses; ops that
one family of kernels has made up stand with it in rawnn/ptx. rawnn/step/kinds.py imports all of
them; this package imports none, as losses need what ops have in common.
"""
