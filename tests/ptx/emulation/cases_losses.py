"""Checks of the losses (kernel_cases.py)."""

from __future__ import annotations

import itertools
import math

import numpy as np
from emulated_arrays import (
    DTYPES,
    EPS,
    STEP,
    TINY,
    apart,
    close,
    f64,
    filled,
    metrics,
    one_hot,
    only_step_written,
    padding_untouched,
    pitched,
    softmax64,
    sum_bound,
    threads_for,
    workspace,
)
from emulated_kernels import Emulator

SCALE = 4.0


def scaling() -> dict[str, np.ndarray]:
    """A loss scale of SCALE, and the flag."""
    return {"loss_scale": np.array([SCALE, 0], np.float32), "overflow": np.zeros(1, np.int32)}


def check_softmax(emulator: Emulator, rng: np.random.Generator) -> None:
    columns = (10, 33) if emulator.quick else (1, 2, 10, 32, 33, 127)
    for rows, cols, pad in itertools.product((1, 31, 33), columns, (0, 2)):
        y = rng.integers(0, cols, rows).astype(np.int32)
        for kind in ("float", "bfloat16"):
            z = filled(rng.standard_normal((rows, cols)) * 30, pad, DTYPES[kind])
            p = pitched(rows, cols, apart(pad, 1))
            # The last warp of a block of 50 threads has nothing to do.
            block = (50 if pad else 64,)
            emulator.call(f"softmax<{kind}>", (2,), block, z=z, p=p, rows=rows, cols=cols)
            expected = softmax64(f64(z))
            # exp's argument is rounded: an error of eps times its size, which is at most 300 here.
            close(p, expected, expected * (EPS * 300 + 4 * EPS * math.sqrt(cols)) + TINY)
            padding_untouched(p)
        for kind in ("float", "float16"):
            dz = pitched(rows, cols, apart(pad, 2) or 1, DTYPES[kind])
            scaled = scaling() if pad else {}
            emulator.call(f"softmax_backward<{kind}>", (2,), (64,), p=p, y=y, dz=dz, rows=rows,
                          cols=cols, **scaled)
            factor = (SCALE if pad else 1) / rows
            close(dz, (f64(p) - one_hot(y, cols)) * factor, 3 * EPS * factor)
            padding_untouched(dz)


def check_softmax_overflow(emulator: Emulator, rng: np.random.Generator) -> None:
    """The gradients that exist set the flag, and what fills up their row's last vector does not."""
    rows, cols = 5, 10
    y = rng.integers(0, cols, rows).astype(np.int32)
    for right in (True, False):  # gradients are 0, or two a row are too large
        p = one_hot(y if right else (y + 1) % cols, cols).astype(np.float32)
        scaled = scaling()
        scaled["loss_scale"][0] = 65600.0 * rows
        emulator.call("softmax_backward<float16>", (1,), (32,), p=p, y=y,
                      dz=pitched(rows, cols, 0, np.float16), rows=rows, cols=cols, **scaled)
        assert scaled["overflow"][0] == int(not right)


def check_loss(emulator: Emulator, rng: np.random.Generator) -> None:
    """One block and several; rows that a thread takes, and that a warp holds or walks along."""
    columns = (10, 20, 33, 390) if emulator.quick else (1, 12, 13, 32, 33, 70, 390, 1026)
    counts = (33,) if emulator.quick else (1, 33, 140)
    for rows, cols, pad in itertools.product(counts, columns, (0, 2)):
        z = filled(rng.standard_normal((rows, cols)) * 4, pad)
        y = rng.integers(0, cols, rows).astype(np.int32)
        p = filled(softmax64(f64(z)), pad)
        if cols > 1:
            p[0, :2] = p[0].max()  # a tie: the first maximum wins
            y[0] = 0
            z[0, :2] = z[0].max()
            p[-1, y[-1]] = 0.0  # a probability that has no logarithm: the logits have it
        right = int((p.argmax(axis=1) == y).sum())
        exact = softmax64(f64(z))
        rows64 = -np.log(exact[np.arange(rows), y])
        picked = f64(p)[np.arange(rows), y]
        loss64 = np.where(picked < TINY, rows64, -np.log(np.maximum(picked, TINY)))
        spread = EPS * 64 + 4 * EPS * math.sqrt(cols)  # exp of a rounded difference below 64
        for (blocks, wanted), kind in zip(
            ((1, 1), (1, 50), (1, 128), (3, 64), (1, 32)),
            ("float", "float16", "float", "bfloat16", "float8_e5m2"), strict=True,
        ):  # fmt: skip
            if emulator.quick and wanted == 128:
                continue
            grid, block = (blocks,), (threads_for(emulator, wanted),)
            common = {"y": y, "cursor": metrics()[0], "offset": 2, "rows": rows, "cols": cols,
                      "workspace": workspace(blocks) if blocks > 1 else None}
            for name in ("cross_entropy", "accuracy", "loss_accuracy", f"loss_gradient<{kind}>",
                         f"softmax_loss_gradient<{kind}>"):
                gradient, softmax = "gradient" in name, name.startswith("softmax")
                _, loss, correct = metrics()
                dz = pitched(rows, cols, pad + 1, DTYPES[kind])
                written = {"loss": loss, "correct": correct}
                if name in ("cross_entropy", "accuracy"):
                    del written["correct" if name == "cross_entropy" else "loss"]
                if gradient:
                    written["dz"] = dz
                    written |= scaling() if pad else {}
                source = {"z": z} if softmax else {"p": p} if name == "accuracy" \
                    else {"p": p, "z": z}
                emulator.call(name, grid, block, **source, **common, **written)
                expected = rows64 if softmax else loss64
                if "loss" in written:
                    by_logits = 1.0 if softmax else (picked < TINY).mean()
                    bound = sum_bound(expected.mean(), rows) + spread * by_logits
                    close(loss[STEP], expected.mean(), bound)
                if "correct" in written:
                    assert correct[STEP] == ((z.argmax(axis=1) == y).sum() if softmax else right)
                only_step_written(loss, correct)
                if gradient:
                    probabilities = exact if softmax else f64(p)
                    factor = (SCALE if pad else 1) / rows
                    bound = (exact * spread + 3 * EPS) if softmax else 3 * EPS
                    close(dz, (probabilities - one_hot(y, cols)) * factor, bound * factor)
                    padding_untouched(dz)
                    if pad:
                        assert written["overflow"][0] == 0
            if common["workspace"] is not None:
                assert common["workspace"][0] == 0, "the ticket must be ready for the next launch"


def check_loss_overflow(emulator: Emulator, rng: np.random.Generator) -> None:
    """A gradient beyond what its type holds sets the flag, where that type saturates as well."""
    for kind, largest in (("float16", 65504.0), ("float8_e5m2", 57344.0)):
        for (cols, label), by, over in itertools.product(
            ((2, 0), (10, 5), (10, 9), (64, 0)), ("loss", "softmax_loss"), (-32, 32)
        ):
            cursor, loss, correct = metrics()
            source, value = ("p", 1 / cols) if by == "loss" else ("z", 0.0)
            values = np.full((1, cols), value, np.float32)
            scaled = scaling()
            scaled["loss_scale"][0] = (largest + over) * cols / (cols - 1)  # dz is p - 1 times that
            emulator.call(
                f"{by}_gradient<{kind}>", (1,), (32,), **{source: values},
                y=np.full(1, label, np.int32), cursor=cursor, offset=2, loss=loss,
                dz=pitched(1, cols, 0, DTYPES[kind]), correct=correct, rows=1, cols=cols, **scaled,
            )  # fmt: skip
            assert scaled["overflow"][0] == int(over > 0), (kind, cols, label, by)


def check_gradient_alone(emulator: Emulator, rng: np.random.Generator) -> None:
    """A step that reports nothing leaves both metrics out."""
    z, y = filled(rng.standard_normal((5, 7)), 0), np.array([0, 1, 2, 3, 6], np.int32)
    dz, cursor = pitched(5, 7, 1), metrics()[0]
    emulator.call("softmax_loss_gradient<float>", (1,), (32,), z=z, y=y, cursor=cursor, offset=2,
                  dz=dz, rows=5, cols=7)
    close(dz, (softmax64(f64(z)) - one_hot(y, 7)) / 5, 32 * EPS)
    padding_untouched(dz)


def check_broken_loss(emulator: Emulator, rng: np.random.Generator) -> None:
    """A NaN or a label that is no class gives a NaN loss, and reads nothing outside."""
    for cols, spoil in itertools.product((5, 40), ("value", "high label", "negative label")):
        values = rng.random((3, cols)).astype(np.float32)
        y = np.array([0, 1, 2], np.int32)
        if spoil == "value":
            values[1, cols - 1] = np.nan
            y[1] = cols - 1
        else:
            y[1] = cols if spoil == "high label" else -1
        for name in ("cross_entropy", "loss_accuracy", "loss_gradient<float16>",
                     "softmax_loss_gradient<float16>"):
            cursor, loss, correct = metrics()
            further: dict[str, np.ndarray] = {} if name == "cross_entropy" else {"correct": correct}
            if "gradient" in name:
                further |= {"dz": pitched(3, cols, 0, np.float16), **scaling()}
            source = "z" if name.startswith("softmax") else "p"
            sources = {"z": values, source: values}
            emulator.call(name, (1,), (32,), **sources, y=y, cursor=cursor, offset=2, loss=loss,
                          rows=3, cols=cols, **further)
            assert np.isnan(loss[STEP]), (name, spoil)
            if "overflow" in further:
                assert further["overflow"][0] == int(spoil == "value"), (name, spoil)
            if "correct" in further and source == "p":  # the first NaN counts as the maximum
                assert correct[STEP] == (values.argmax(axis=1) == y).sum(), (name, spoil)


def pointwise64(name: str, z: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Loss and gradient of each element."""
    if name.startswith("mse"):
        return (z - t) ** 2, 2 * (z - t)
    return np.logaddexp(0, z) - z * t, 1 / (1 + np.exp(-z)) - t


def check_pointwise(emulator: Emulator, rng: np.random.Generator) -> None:
    """mse and bce: one block and several."""
    columns = (10,) if emulator.quick else (1, 10, 33)
    cases = (
        ("mse", "float", "float"), ("mse", "bfloat16", "float"),
        ("mse_backward", "float", "float16"), ("mse_gradient", "float", "float"),
        ("mse_gradient", "float16", "bfloat16"), ("bce", "float", "float"),
        ("bce_accuracy", "float", "float"), ("bce_accuracy", "bfloat16", "float"),
        ("bce_backward", "float", "float16"), ("bce_gradient", "float", "float"),
        ("bce_gradient", "float16", "bfloat16"),
    )  # fmt: skip
    pads = (2,) if emulator.quick else (0, 2)
    for (rows, cols, pad), (name, tt, td) in itertools.product(
        itertools.product((1, 33), columns, pads), cases
    ):
        z = filled(rng.standard_normal((rows, cols)) * 4, pad)
        z[0, 0] = 0 if pad else 40  # beyond which 1 + exp(-z) is 1
        t = filled(rng.integers(0, 2, (rows, cols)) if "bce" in name
                   else rng.standard_normal((rows, cols)), apart(pad, 1) or 1, DTYPES[tt])
        loss64, gradient64 = pointwise64(name, f64(z), f64(t))
        both = "gradient" in name or "backward" in name
        expression = f"{name}<{tt},{td}>" if both else f"{name}<{tt}>"
        for blocks, wanted in ((1, 50), (1, 128), (3, 64)):
            cursor, loss, correct = metrics()
            dz = pitched(rows, cols, apart(pad, 2), DTYPES[td])
            words = workspace(blocks)
            arguments: dict[str, object] = {"z": z, "t": t, "rows": rows, "cols": cols}
            if not name.endswith("backward"):
                arguments |= {"cursor": cursor, "offset": 2, "workspace": words}
            if both:
                arguments |= {"dz": dz, **scaling()}
            if name in ("mse", "bce", "mse_gradient", "bce_gradient"):
                arguments["loss"] = loss
            if name in ("bce_accuracy", "bce_gradient"):
                arguments["correct"] = correct
            emulator.call(expression, (blocks,), (threads_for(emulator, wanted),), **arguments)
            size = loss64 + (np.abs(f64(z)) + np.abs(f64(t)) if "bce" in name else 0)
            if "loss" in arguments:
                close(loss[STEP], loss64.mean(), sum_bound(size.mean(), size.size))
            if "correct" in arguments:
                assert correct[STEP] == ((z > 0) == (f64(t) > 0.5)).sum()
            only_step_written(loss, correct)
            if both:
                factor = SCALE / size.size
                bound = 8 * EPS * (1 + np.abs(f64(z)) + np.abs(f64(t))) * factor
                close(dz, gradient64 * factor, bound)
                padding_untouched(dz)
            assert words[0] == 0


def check_repeats(emulator: Emulator, rng: np.random.Generator) -> None:
    """Sums over several blocks have one order: two launches give the same bits."""
    z = filled(rng.standard_normal((150, 40)), 0)
    y = rng.integers(0, 40, 150).astype(np.int32)
    seen = set()
    words = workspace(5)
    for _ in range(2):
        cursor, loss, correct = metrics()
        emulator.call(
            "softmax_loss_gradient<float>", (5,), (64,), z=z, y=y, cursor=cursor, offset=2,
            dz=pitched(150, 40, 0), loss=loss, correct=correct, workspace=words, rows=150, cols=40,
        )  # fmt: skip
        seen.add((loss[STEP].tobytes(), int(correct[STEP])))
    assert len(seen) == 1


def check_broken_pointwise(emulator: Emulator, rng: np.random.Generator) -> None:
    """A NaN in the output or the target gives a NaN loss and sets the flag."""
    for name, spoil in itertools.product(("mse_gradient", "bce_gradient"), "zt"):
        arrays = {key: rng.random((3, 5)).astype(np.float32) for key in "zt"}
        arrays[spoil][1, 2] = np.nan
        cursor, loss, _ = metrics()
        scaled = scaling()
        emulator.call(f"{name}<float,float>", (1,), (32,), **arrays, dz=pitched(3, 5, 0), loss=loss,
                      cursor=cursor, offset=2, rows=3, cols=5, **scaled)
        assert np.isnan(loss[STEP]), (name, spoil)
        assert scaled["overflow"][0] == 1, (name, spoil)
