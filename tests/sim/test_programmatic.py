"""Reading from a kernel's source whether it waits for its producers and triggers its consumers."""

from __future__ import annotations

import pytest

from rawnn import ptx
from rawnn.cuda.device import Device
from rawnn.ptx.kernels import KERNELS, kernel_for
from rawnn.sim import Simulation
from rawnn.sim.griddepcontrol import triggers, waits
from tests.catalogue import cases

ASM = 'asm volatile("griddepcontrol.wait;" ::: "memory");'
CALL = "cudaGridDependencySynchronize();"


def kernel(body: str, ahead: str = "") -> str:
    return f'{ahead}\nextern "C" __global__ void __launch_bounds__(32) k(int* x) {{ {body} }}\n'


@pytest.mark.parametrize("body", [
    ASM, CALL, f"::{CALL}", f"int a = 1; {CALL} x[0] = a;", f"if (x) {{ x[0] = 1; }} {CALL}",
    f"\n#if __CUDA_ARCH__ >= 900\n  {CALL}\n#endif\n",
    f"for (int i = 0; i < 3; ++i) {{ x[i] = f(i); }} {ASM}",
    'asm("griddepcontrol.launch_dependents; griddepcontrol.wait;");',
    f"if (x) {{ {CALL} }} else {{ x[1] = 2; {ASM} }}", f"if (x) {{ {CALL} return; }} {CALL}",
    f"if (x) {{ int y = 1; {CALL} x[y] = 1; return; }} else f(x); {CALL}",
    f"const auto load = [&] {{ if (!x) return; x[0] = 1; }}; load(); {CALL}",
    f"do {{ {CALL} }} while (x[0]);", f"if (a) {CALL} else if (b) {CALL} else {CALL}",
])
def test_kernels_that_always_wait(body: str) -> None:
    assert waits(kernel(body), "k")


@pytest.mark.parametrize("body", [
    "x[0] = 1;", f"// {CALL}", f"/* {ASM} */", f"if (x) {CALL}", f"if (x) {{ {CALL} }}",
    f"if (x[0]) return; {CALL}", f"for (int i = 0; i < 3; ++i) {CALL}", f"x ? f() : {CALL}",
    f"if (x) {{ }} else {CALL}", 'asm("griddepcontrol.launch_dependents;");',
    f"if (x) {{ {CALL} }} else {{ return; }} {CALL}", f"if (x) {{ if (y) {CALL} return; }} {CALL}",
    f"while (x[0]) {{ {CALL} return; }}", f"const auto later = [&] {{ {CALL} }};",
    f"if (a) {CALL} else if (b) {CALL}", 'printf("cudaGridDependencySynchronize();");',
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


def test_methods_count_where_every_one_of_the_name_waits() -> None:
    one = f"struct A {{ __device__ void run(int x) const {{ {CALL} }} }};"
    other = "struct B { __device__ void run() { x(); } };"
    assert waits(kernel("A a; a.run(1);", one), "k")
    assert waits(kernel("ns::A<3> a{}; a . run(1);", f"namespace ns {{ {one} }}"), "k")
    assert not waits(kernel("A a; a.run(1);", one + other), "k")
    of_any = "template <typename LOOP> __device__ void any() { LOOP::template run<1>(2); }"
    assert waits(kernel("any<A>();", one + of_any), "k")


@pytest.mark.parametrize("key", sorted(KERNELS), ids="/".join)
def test_kernels_wait_in_their_headers_too(key: tuple[str, str]) -> None:
    """What the simulated GPU finds of a kernel as it is compiled is what the proof from the real
    PTX finds: all wait but those that run once, and the end of a loop."""
    case = cases()[key][0]
    impl = kernel_for(case.op)
    device = Device(Simulation().backend())
    expression = impl.expression(case.op, case.plan)
    device.compile(impl.source, (expression,), impl.source == "elementwise/while.cu", True)
    proof = device.function(impl.source, expression, True).proof
    once = impl.source in ("elementwise/initialise.cu", "elementwise/while.cu")
    assert (proof.waits, proof.triggers) == (not once,
                                             not once and impl.source != "fused/linear.cu")
    device.close()


def test_each_kernel_of_a_source_has_its_own_answer() -> None:
    source = kernel(CALL) + kernel("").replace(" k(", " other(")
    assert waits(source, "k")
    assert not waits(source, "other")
    assert not waits(source, "absent")


def test_none_of_the_while_and_cursor_kernels_has_anything_to_do_with_it() -> None:
    for file, name in (("elementwise/while.cu", "advance_while"), ("elementwise/cursor.cu",
                                                                   "advance")):
        source = ptx.source_path(file).read_text()
        assert not waits(source, name)
        assert not triggers(source, name)
