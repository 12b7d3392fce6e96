"""Adam and AdamW, as torch.optim's: they differ in where the weights decay."""

from __future__ import annotations

from rawnn.model.optimizers import OptimizerSpec, Settings, register


def _adam(name: str, decay: float, decoupled: bool) -> OptimizerSpec:
    def attributes(s: Settings) -> dict[str, float | bool]:
        return {"beta1": s["beta1"], "beta2": s["beta2"], "eps": s["eps"], "decoupled": decoupled}

    return OptimizerSpec(name, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": decay},
                         kind=lambda s: "adam", state=lambda s: ("m", "v"), attributes=attributes,
                         counts_steps=True)


register(_adam("adam", 0.0, decoupled=False))
register(_adam("adamw", 0.01, decoupled=True))
