"""Reading from a kernel's source whether it waits for its producers and triggers its consumers."""

from __future__ import annotations

import pytest

from rawnn import ptx
from rawnn.sim.programmatic import triggers, waits

ASM = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
CALL = "cudaGridDependencySynchronize();"


def kernel(body: str, ahead: str = "") -> str:
    return f'{ahead}\nextern "C" __global__ void __launch_bounds__(32) k(int* x) {{ {body} }}\n'


@pytest.mark.parametrize("body", [
    ASM, CALL, f"::{CALL}", f"int a = 1; {CALL} x[0] = a;", f"if (x) {{ x[0] = 1; }} {CALL}",
    f"\n#if __CUDA_ARCH__ >= 900\n  {CALL}\n#endif\n",
    f"for (int i = 0; i < 3; ++i) {{ x[i] = f(i); }} {ASM}",
    'asm("griddepcontrol.launch_dependents; griddepcontrol.wait;");',
])
def test_kernels_that_always_wait(body: str) -> None:
    assert waits(kernel(body), "k")


@pytest.mark.parametrize("body", [
    "x[0] = 1;", f"// {CALL}", f"/* {ASM} */", f"if (x) {CALL}", f"if (x) {{ {CALL} }}",
    f"if (x[0]) return; {CALL}", f"for (int i = 0; i < 3; ++i) {CALL}", f"x ? f() : {CALL}",
    f"if (x) {{ }} else {CALL}", 'asm("griddepcontrol.launch_dependents;");',
])
def test_kernels_that_may_not_wait(body: str) -> None:
    assert not waits(kernel(body), "k")


def test_functions_that_the_kernel_calls_count() -> None:
    helper = f"__device__ void ready() {{ {CALL} }}\ntemplate <int N> __device__ void go() " \
             f"{{ cudaTriggerProgrammaticLaunchCompletion(); go<N>(); }}"
    assert waits(kernel("ready();", helper), "k")
    assert not waits(kernel("if (x) ready();", helper), "k")
    assert not waits(kernel("other();", helper), "k")
    assert triggers(kernel("if (x) go<3>();", helper), "k")
    assert not triggers(kernel("ready();", helper), "k")
    assert not waits(kernel("k(x);"), "k")  # calls itself: no wait is ever found


def test_each_kernel_of_a_source_has_its_own_answer() -> None:
    source = kernel(CALL) + kernel("").replace(" k(", " other(")
    assert waits(source, "k")
    assert not waits(source, "other")
    assert not waits(source, "absent")


def test_none_of_the_while_and_cursor_kernels_has_anything_to_do_with_it() -> None:
    for file, name in (("while.cu", "advance_while"), ("cursor.cu", "advance")):
        source = ptx.source_path(file).read_text()
        assert not waits(source, name)
        assert not triggers(source, name)
