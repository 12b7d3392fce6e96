"""Every kernel of the table that the plans ask for, as it is compiled for programmatic launches."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from rawnn.cuda.compiling.cache import CubinCache
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.model.optimizers import Optimizer
from rawnn.ptx import SOURCES
from rawnn.ptx.kernels import kernel_for
from tests.engine import make_work, random_dataset
from tests.ptx.architectures import some_instances
from tests.ptx.test_programmatic import nvrtc

OPTS = ("none", "preload,arena,nosync,fuse", "preload,cublas,fuse", "best", "seed",
        "preload,bf16,fuse", "preload,fp16", "preload,tiled,fuse", "preload,mma,bf16,fuse",
        "preload,mma,fp16,fuse", "preload,mma,sr,fuse")
LOADS = {"LD", "LDG", "LDGSTS", "UBLKCP", "UTMALDG"}
STORES = {"ST", "STG", "ATOM", "ATOMG", "RED", "UTMASTG", "UTMAREDG"}
LAYERS = ((29, 7), (29, 16, 7), (64, 64, 10), (64, 128, 128, 10))
OPTIMIZERS = (Optimizer(lr=0.1), Optimizer("adam", 0.01), Optimizer("sgd", 0.1, {"momentum": 0.9}))
ONCE = {"elementwise/initialise.cu"}
"""Run once: nothing is gained by beginning them early."""


@cache
def instances() -> dict[str, tuple[str, ...]]:
    """Source file -> kernels that some plan needs."""
    wanted: dict[str, dict[str, None]] = {}
    for layers in LAYERS:
        data = random_dataset(layers[0], layers[-1], 128, 32)
        for opt in OPTS:
            for optimizer in OPTIMIZERS:
                work = make_work(opt, layers, data, 32, optimizer=optimizer, shuffle=True)
                plans = [work.train, work.unreported, work.start, work.refresh, work.epoch_begin,
                         work.epoch_end,
                         work.epoch_boundary, *(part.plan for part in work.evaluate)]
                for plan in plans:
                    for op in plan.advancing().ops if plan.ops else ():
                        if op.kind != "upload" and op.impl not in ("cublas", "cudnn"):
                            impl = kernel_for(op)
                            wanted.setdefault(impl.source, {})[impl.expression(op, plan)] = None
    return {source: tuple(found) for source, found in sorted(wanted.items())}


def compiled(source: str, arch: str, expressions: tuple[str, ...],
             cache: CubinCache | None = None) -> Compiled:
    return compile_source(nvrtc(), (SOURCES / source).read_text(), name=source, arch=arch,
                          expressions=expressions, programmatic=True, cache=cache)


@pytest.mark.parametrize("source", instances())
def test_every_kernel_waits_before_it_touches_anything(source: str) -> None:
    wanted = some_instances(source, instances()[source])
    for expression, proof in compiled(source, "sm_90a", wanted).proofs.items():
        if source not in ONCE:
            assert proof.waits, f"{expression}: {proof.reason}"
            assert proof.ordered, f"{expression} triggers ahead of its wait"
        assert proof.waits or not proof.triggers, f"{expression} triggers, but: {proof.reason}"


def test_proofs_are_kept_in_the_cache(tmp_path: Path) -> None:
    kept, wanted = CubinCache(tmp_path), instances()["losses/softmax.cu"]
    first, second = (compiled("losses/softmax.cu", "sm_90", wanted, kept) for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    assert second.proofs == first.proofs
    assert set(first.proofs) == set(wanted)


def test_without_programmatic_there_is_no_wait_and_no_proof() -> None:
    text = (SOURCES / "losses/softmax.cu").read_text()
    built = compile_source(nvrtc(), text, name="losses/softmax.cu", arch="sm_90",
                           expressions=("softmax<float>",))
    assert not built.proofs


@pytest.mark.parametrize("source", instances())
def test_the_machine_code_has_the_accesses_behind_the_wait_too(source: str,
                                                               tmp_path: Path) -> None:
    """What the proof takes on trust: that ptxas moves no access across the wait."""
    tool = shutil.which("cuobjdump")
    if tool is None:
        pytest.skip("needs cuobjdump: NVIDIA's CUDA toolkit has it")
    for arch in ("sm_90a", *(["sm_100"] if source != "gemm/wgmma.cu" else [])):
        built = compiled(source, arch, instances()[source])
        file = tmp_path / f"{arch}.cubin"
        file.write_bytes(built.cubin)
        text = subprocess.run([tool, "-sass", file], capture_output=True, text=True,
                              check=True).stdout
        code = {part.split("\n")[0].strip(): part for part in text.split("Function : ")[1:]}
        for expression, proof in built.proofs.items():
            if not proof.waits:
                continue
            words = re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?\S+ )?([A-Z][A-Z0-9_.]*)",
                               code[built.lowered[expression]])
            wait = words.index("ACQBULK")
            accesses = STORES if proof.early else STORES | LOADS
            ahead = [word for word in words[:wait] if word.partition(".")[0] in accesses]
            assert not ahead, f"{expression}, {arch}: {ahead}"
