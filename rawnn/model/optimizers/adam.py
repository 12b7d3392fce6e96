"""Adam and AdamW, as torch.optim's: they differ in where the weights decay."""

from __future__ import annotations

from rawnn.model.optimizers import Rule, Settings, register


def _rule(name: str, decay: float, decoupled: bool) -> Rule:
    def attributes(s: Settings) -> dict[str, float | bool]:
        return {"beta1": s["beta1"], "beta2": s["beta2"], "eps": s["eps"], "decoupled": decoupled}

    return Rule(name, {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": decay},
                kind=lambda s: "adam", state=lambda s: ("m", "v"), attributes=attributes,
                timed=True)


register(_rule("adam", 0.0, decoupled=False))
register(_rule("adamw", 0.01, decoupled=True))
