"""tools/fit_costs.py: constants that made the times are found again, each with where it is from."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from rawnn.bench.gpu_limits import GPU, SUITE, Limits
from rawnn.bench.record import Record
from rawnn.cuda.fitted_constants import kept as kept_costs
from rawnn.persistent import cost
from rawnn.persistent.choose import choose
from rawnn.persistent.cost import Costs
from rawnn.persistent.problem import Unsupported
from tests.bench.measuring import place, record, results
from tests.persistent.problems import HOPPER, problem
from tools.fit_costs import (
    Constant,
    LeftOut,
    Measured,
    _measured,
    expected,
    fitted,
    main,
    of_floors,
    report,
)

CLOCK, EXCHANGE, RATE = 1900.0, 400.0, 12.0  # cycles a microsecond, cycles, bytes a cycle
SHAPES = [(layers, batch, shares)
          for layers in ((784, 10), (784, 64, 10), (784, 128, 128, 10), (300, 200, 100, 50, 10),
                         (64, 256, 256, 10), (784, 256, 256, 256, 10))
          for batch in (16, 128) for shares in ((1, 0), (8, 1), (16, 4))]


def floors(*without: str) -> Limits:
    """Of a GPU on which an exchange of n bytes takes EXCHANGE + n / RATE cycles."""
    where = place(gpu={"name": "NVIDIA H200", "driver": "1"})

    def one(name: str, *values: float, metric: str = "latency_us") -> Record:
        return record(name, values, SUITE, metric, precision="", environment=where.key)

    found = [one("grid_barrier", 1.1)]
    for size in (2, 4, 8, 16):
        short, long = ((EXCHANGE + nbytes / RATE) / CLOCK for nbytes in (512 * size, 4096 * size))
        found += [one(f"exchange_{size}", short),
                  one(f"exchange_bytes_{size}", 4096 * size / long / 1e3, metric="bandwidth_gbs")]
    if "clock" not in without:
        found += [one(GPU, CLOCK - 100, CLOCK, CLOCK + 10, metric="sm_mhz")]
    return Limits(results(*found, where=where))


def measured(costs: Costs, noise: float = 0.0) -> list[Measured]:
    """What networks shared in several ways take by the model with these constants."""
    generator, found = np.random.default_rng(0), []
    for layers, batch, shares in SHAPES:
        try:
            choice = choose(problem(layers, batch), HOPPER, *shares)
        except Unsupported:  # it has no room in so few blocks
            continue
        us = expected(choice, costs) * float(np.exp(noise * generator.standard_normal()))
        found.append(Measured(str(choice.sharding), choice, us))
    return found


def test_what_floors_say_is_taken_from_them() -> None:
    found = of_floors(floors())
    assert found == pytest.approx({"clock": CLOCK, "exchange": EXCHANGE, "exchange_bytes": RATE,
                                   "group_overflow_check": 1.1 * CLOCK})
    assert of_floors(floors("clock")) == {}


def test_constants_that_made_the_times_are_found_again_and_say_where_they_are_from() -> None:
    fixed = {k: v for k, v in of_floors(floors()).items() if k in asdict(cost.FITTED)}
    true = replace(cost.FITTED, **fixed, gemm=2.0, gradient=2.2, second_exchange=2500.0)
    networks = measured(true, noise=0.01)
    assert len(networks) > 15
    found = {c.name: c for c in fitted(networks, cost.FITTED, fixed)}
    assert {name for name, c in found.items() if c.source == "floors"} == set(fixed)
    for name in ("gemm", "gradient", "second_exchange"):
        c = found[name]
        assert c.source == "fit"
        assert c.before == getattr(cost.FITTED, name)
        assert c.value == pytest.approx(getattr(true, name), rel=0.15), name
    # No network here has a scaled loss or stochastic rounding: nothing is learned of these.
    for name in ("overflow_check", "rounding"):
        assert found[name].source == "kept"
        assert found[name].value == pytest.approx(getattr(cost.FITTED, name))
    after = Costs(**{c.name: c.value for c in found.values()})
    before = [abs(np.log(expected(m.choice, cost.FITTED) / m.us)) for m in networks]
    now = [abs(np.log(expected(m.choice, after) / m.us)) for m in networks]
    assert np.mean(now) < 0.03 < np.mean(before)


def test_the_command_reads_files_and_refuses_what_it_cannot_fit(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAWNN_CACHE", str(tmp_path / "cache"))
    kept, steps = tmp_path / "floors.json", tmp_path / "steps.csv"
    floors().results.write(kept)
    steps.write_text("layers,batch,opt,us,optimizer\n"
                     "784-10,128,persistent,6.1,\n"
                     "784-128-10,128,\"best,persistent\",11.0,adam\n"
                     "784-128-10,32,\"persistent=8x2:256:SFF,bf16\",9.5,\n"
                     "784-128-10,32,\"best,-persistent\",20,\n"
                     "784-128-10,32,persistent=8x2:256:SSS,20,\n")
    assert main([str(steps), "--floors", str(kept), "--fit", "exchange"]) == 0
    said = capsys.readouterr().out
    assert "784-128-10 batch 32 persistent=8x2:256:SFF,bf16" in said
    assert "line 5: no persistent kernel comes of best,-persistent" in said
    assert "line 6: the toggle 'persistent' cannot run so" in said
    source = {line.split()[0]: line.split()[3] for line in said.splitlines()
              if len(line.split()) > 3}
    assert source["clock"] == "floors"
    assert source["exchange"] in ("fit", "kept")
    assert "in the root mean square of 3 log ratios" in said
    assert kept_costs("NVIDIA H200") == {}
    assert main([str(steps), "--floors", str(kept), "--keep"]) == 0
    assert "costs-nvidia-h200.json" in capsys.readouterr().out
    assert kept_costs("NVIDIA H200")["clock"] == CLOCK
    assert set(kept_costs("NVIDIA H200")) == set(asdict(cost.FITTED))
    assert main([str(steps), "--keep"]) == 1
    assert "--keep needs --floors" in capsys.readouterr().err
    assert main([str(steps), "--floors", str(kept), "--stay", "exchange", "--stay", "clock"]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line.split()}
    assert lines["exchange"][1] == lines["exchange"][2]
    assert lines["clock"][2] == f"{cost.FITTED.clock:.4g}" != f"{CLOCK:.4g}"
    assert lines["exchange"][3] == lines["clock"][3] == "stays"
    for text, words in (("layers,batch,us\n784-10,1,2\n", "line 2: there is no opt"),
                        ("layers,batch,opt,us\n784-10,8,fuse,2\n", "0 networks cannot be fitted"),
                        ("layers,batch,form,us,reason\n784-10,8,1x1:256:FF,2,no room\n", "0 net"),
                        *((f"layers,batch,opt,us\n784-10,8,persistent,{us}\n", "us must be above 0")
                          for us in (-2, 0, "nan")),
                        ("layers,batch,opt,us\n", "0 networks cannot be fitted to")):
        steps.write_text(text)
        assert main([str(steps)]) == 1
        assert words in capsys.readouterr().err
    assert main([str(steps), "--fit", "exchang"]) == 1
    assert "no constant is called exchang" in capsys.readouterr().err
    assert main([str(steps), "--stay", "clok"]) == 1
    assert "no constant is called clok" in capsys.readouterr().err


def test_what_is_to_stay_stays_whatever_floors_say() -> None:
    networks = measured(cost.FITTED, noise=0.01)
    for fixed in ({}, {"clock": 2 * cost.FITTED.clock}):
        found = {c.name: c for c in fitted(networks, cost.FITTED, fixed, ["clock"])}
        assert (found["clock"].value, found["clock"].source) == (cost.FITTED.clock, "stays")
        assert 0.8 < found["gemm"].value / cost.FITTED.gemm < 1.25  # at twice the clock 2


ROW = {"layers": "784-32-10", "batch": "64", "opt": "persistent", "us": "7.5"}
FORM = {"layers": "784-128-10", "batch": "32", "us": "3", "form": "8x2:256:SFF"}


@pytest.mark.parametrize(("row", "wanted"), [
    (ROW, {"layers": (784, 32, 10), "batch": 64, "rule": "Sgd", "loss": "", "activation": "relu",
           "inputs": "uint8", "labels": "uint8", "scale": 1 / 255, "numbers": "float32"}),
    ({**ROW, "optimizer": "adam", "activation": "tanh"}, {"rule": "Adam", "activation": "tanh"}),
    ({**ROW, "loss": "mse", "inputs": "float32"}, {"inputs": "float32", "scale": 1.0,
                                                   "labels": ""}),
    ({**FORM, "numbers": "float32"}, {"numbers": "float32", "layers": (784, 128, 10)}),
    ({**FORM, "numbers": "bf16", "opt": ""}, {"numbers": "bfloat16", "batch": 32}),
])
def test_a_row_is_the_network_that_it_says(row: dict[str, str], wanted: dict[str, object]) -> None:
    found = _measured(row, "here", "H200")
    assert found.us == float(row["us"])
    of = found.choice.sharding.problem
    assert {name: getattr(of, name) for name in wanted} == wanted
    assert ("loss" in row) == bool(of.loss)
    if "form" in row:
        assert str(found.choice.sharding).startswith("8 x 2 blocks of 256 threads, SFF")
        opt = f"persistent={row['form']}{',bf16' * (row['numbers'] == 'bf16')}"
        assert found.name == f"784-128-10 batch 32 {opt}"


def test_a_row_with_a_reason_is_left_out() -> None:
    with pytest.raises(LeftOut, match="here: no room"):
        _measured({**FORM, "reason": "no room"}, "here", "H200")


def test_the_report_says_how_far_off_the_model_was_and_is() -> None:
    true = replace(cost.FITTED, clock=cost.FITTED.clock / 2)  # all takes twice as long
    networks = [replace(each, us=each.us * factor)
                for each, factor in zip(measured(true), (1.0, 1.1, 1.0), strict=False)]
    constants = [Constant(name, before, getattr(true, name), "fit", 0.01)
                 for name, before in asdict(cost.FITTED).items()]
    logs = np.log([[m.us / expected(m.choice, costs) for m in networks]
                   for costs in (cost.FITTED, true)])
    before, now = np.sqrt(np.mean(logs**2, 1))
    assert before == pytest.approx(np.log(2), rel=0.1)
    said = report(networks, constants)
    assert said.endswith(f"off by {before:.1%} before and {now:.1%} now, in the root mean square "
                         f"of 3 log ratios; they took 1.00 to 1.10 of what is expected now, "
                         f"{1.1 ** (1 / 3):.2f} in the mean")
    first = networks[0]
    assert (f"{first.us:>9.2f} {expected(first.choice, cost.FITTED):>9.2f} {first.us:>9.2f}  "
            f"{first.name}") in said
    assert f"{'clock':<18} {cost.FITTED.clock:>10.4g} {true.clock:>10.4g}  fit     1%" in said
