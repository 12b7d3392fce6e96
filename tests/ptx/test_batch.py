"""Kernels compiled beside each other: every instance once, in threads that work together."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rawnn.common.cuda_text import CudaText
from rawnn.common.errors import CompileError
from rawnn.cuda.compiling.batch import Batch, Job, SharedResults
from rawnn.cuda.compiling.compile import Compiled, compile_source
from rawnn.ptx import source_path
from tests import requires

JOBS = [Job("a.cu", ("x", "y")), Job("b.cu", ("z",), programmatic=True)]


def compiled(job: Job) -> Compiled:
    return Compiled(f"{job.file}:{'+'.join(job.expressions)}".encode(), {}, False, 0.0)


def test_one_after_another_a_job_is_one_program() -> None:
    asked: list[Job] = []

    def received(job: Job) -> Compiled:
        asked.append(job)
        return compiled(job)

    batch = Batch(JOBS, received, parallel=False)
    assert asked == []  # nothing is done before it is asked for
    assert [built.cubin for _, built in batch] == [b"a.cu:x+y", b"b.cu:z"]
    assert asked == JOBS


def test_in_parallel_every_instance_is_compiled_at_once_and_found_in_order() -> None:
    together = threading.Barrier(3, timeout=20)

    def meeting(job: Job) -> Compiled:
        together.wait()  # each waits for the others: were they not parallel, this would break
        return compiled(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 3)
        batch = Batch(JOBS, meeting, parallel=True)
        found = list(batch)
    assert [(job.expressions, job.programmatic) for job, _ in found] == [
        (("x",), False), (("y",), False), (("z",), True)]
    assert [built.cubin for _, built in found] == [b"a.cu:x", b"a.cu:y", b"b.cu:z"]


def test_the_largest_source_is_begun_first() -> None:
    begun: list[str] = []

    def slow(job: Job) -> Compiled:
        begun.append(job.file)
        return compiled(job)

    jobs = [Job("elementwise/cursor.cu", ("advance",)), Job("losses/loss.cu", ("accuracy",)),
            Job("mine.cu", ("m",), code=CudaText("x" * 10_000_000)),
            Job("losses/softmax.cu", ("softmax<float>",))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)
        found = list(Batch(jobs, slow, parallel=True))
    assert begun == ["mine.cu", "losses/loss.cu", "losses/softmax.cu", "elementwise/cursor.cu"]
    assert [job.file for job, _ in found] == [job.file for job in jobs]


def test_a_kernel_written_for_a_network_is_begun_first_however_short_it_is() -> None:
    begun: list[str] = []

    def slow(job: Job) -> Compiled:
        begun.append(job.file)
        return compiled(job)

    instance = CudaText("x" * 20)  # the text of an instance of a file, with what it needs
    jobs = [Job("losses/loss.cu", ("accuracy",)), Job("losses/softmax.cu", ("s",), code=instance),
            Job("train_steps_0.cu", ("train_steps_0",), code=CudaText("x" * 10))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)
        list(Batch(jobs, slow, parallel=True))
    assert begun == ["train_steps_0.cu", "losses/loss.cu", "losses/softmax.cu"]


def test_a_kernel_that_does_not_compile_raises_where_it_is_asked_for() -> None:
    def broken(job: Job) -> Compiled:
        if job.expressions == ("y",):
            raise CompileError("no")
        return compiled(job)

    batch = Batch(JOBS, broken, parallel=True)
    with pytest.raises(CompileError):
        list(batch)
    batch.close()
    batch.close()


def test_what_nobody_waits_for_is_not_begun() -> None:
    begun: list[Job] = []

    def slow(job: Job) -> Compiled:
        begun.append(job)
        time.sleep(0.2)
        return compiled(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 1)
        Batch(JOBS, slow, parallel=True).close()
    assert len(begun) <= 1


def test_nvrtc_compiles_in_threads_what_it_compiles_alone() -> None:
    requires.module("cuda.bindings.nvrtc")
    from rawnn.cuda.nvrtc import Nvrtc

    library = Nvrtc()

    def built(job: Job) -> Compiled:
        return compile_source(library, source_path(job.file).read_text(), name=job.file,
                              arch="sm_90", expressions=job.expressions)

    jobs = [Job("losses/softmax.cu", ("softmax<float>",)), Job("elementwise/cursor.cu", ("advance",
                                                                                         "tick")),
            Job("losses/loss.cu", ("accuracy", "cross_entropy"))]
    alone = {job.expressions: built(job) for whole in jobs for job in whole.instances()}
    for job, found in Batch(jobs, built, parallel=True):
        assert found.cubin == alone[job.expressions].cubin
    # Of kernels that are no templates only the one that is wanted is there.
    assert b"cross_entropy" not in alone["accuracy",].cubin
    assert b"accuracy" in alone["accuracy",].cubin


ORDER = """
from rawnn.cuda.compiling.compile import compile_source
from rawnn.cuda.nvrtc import Nvrtc
from rawnn.ptx.persistent.persistent import QUICK

root = 'extern "C" __global__ void root(float* p) { p[0] = 1.0f / sqrtf(p[0]); }'
rule = '#include "optimizers/step_functors.cuh"\\n' + '''extern "C" __global__ void rule(float* p,
int t) {
  const ApproximateAdam adam(0.001f, t, 0.0f, 0.9, 0.999, 1e-8f, false);
  float state[2] = {p[1], p[2]};
  p[0] = adam(p[0], p[3], state), p[1] = state[0], p[2] = state[1];
}'''
library = Nvrtc()
found = [compile_source(library, text, name=name + ".cu", arch="sm_90", expressions=(name,),
                        options=options).cubin
         for name, text, options in (("rule", rule, QUICK), ("root", root, ()),
                                     ("rule", rule, QUICK))]
assert found[0] == found[2]
"""


def test_what_else_was_compiled_does_not_decide_the_bits_of_adam_on_the_chip() -> None:
    """NVRTC makes one instruction or two of 1 / sqrtf(x), by what it compiled before."""
    requires.module("cuda.bindings.nvrtc")
    done = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_devices_share_results() -> None:
    """The first that asks compiles, the others wait for it."""
    results, begun, calls = SharedResults(), threading.Barrier(4), list[str]()

    def compiled() -> Any:
        calls.append(threading.current_thread().name)
        time.sleep(0.05)
        return object()

    def ask(key: str) -> Any:
        begun.wait(20)
        return results.get(key, compiled)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, ["a", "a", "b", "a"]))
    assert len(calls) == 2
    assert found[0] is found[1] is found[3] is not found[2]


def test_what_has_failed_is_tried_by_each() -> None:
    results, tries = SharedResults(), list[int]()

    def failing() -> Any:
        tries.append(1)
        raise CompileError(f"try {len(tries)}")

    for number in (1, 2, 3):
        with pytest.raises(CompileError, match=f"try {number}"):
            results.get("a", failing)
