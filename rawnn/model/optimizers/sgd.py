"""Stochastic gradient descent with momentum, Nesterov's momentum and weight decay, as
torch.optim.SGD (Sutskever et al., 2013)."""

from rawnn.model.optimizers import OptimizerSpec, register

register(OptimizerSpec(
    "sgd", {"momentum": 0.0, "nesterov": 0.0, "decay": 0.0},
    kind=lambda s: "momentum" if s["momentum"] else "sgd",
    state=lambda s: ("v",) if s["momentum"] else (),
    attributes=lambda s: {"momentum": s["momentum"], "nesterov": bool(s["nesterov"])}
    if s["momentum"] else {},
))
