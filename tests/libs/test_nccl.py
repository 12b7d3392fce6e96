"""The backend of NCCL: over the library itself if installed (errors need no GPU), over stand-ins of
its bindings elsewhere, and the message without bindings."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from rawnn.common.errors import MissingLibrary
from rawnn.cuda.errors import CallFailed, check
from rawnn.cuda.libs.collectives import AllGather, AllReduce, Collective, ReduceScatter
from rawnn.cuda.libs.nccl import DATA_TYPE, Nccl
from tests import requires


class Bindings(ModuleType):
    """nccl.bindings.nccl, whose calls are noted and fail with `status`."""

    class NCCLError(Exception):
        def __init__(self, status: int) -> None:
            self.status = status

    def __init__(self) -> None:
        super().__init__("nccl.bindings.nccl")
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.status = 0
        self.ScalarResidence = SimpleNamespace(HostImmediate=1)
        self.UniqueId = SimpleNamespace(from_buffer=lambda data: ("id", bytes(data)))
        self.Comm = lambda handle: f"communicator {handle}"
        self.config = SimpleNamespace(ptr=99, cta_policy=None)
        self.Config = lambda: self.config

    def get_version(self) -> int:
        return 23203

    def get_library_path(self) -> str:
        return "/lib/libnccl.so.2"

    def get_error_string(self, number: int) -> str:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"

    def get_last_error(self, comm: Any) -> str:
        return "the cable is out"

    def red_op_create_pre_mul_sum(self, address: int, datatype: int, residence: int,
                                  comm: Any) -> int:
        self.calls.append(("premul", (ctypes.string_at(address, 4), datatype, residence, comm)))
        return 17

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            if self.status:
                raise self.NCCLError(self.status)
            return 7

        return call


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    found = Bindings()
    package, inner = ModuleType("nccl"), ModuleType("nccl.bindings")
    inner.nccl = found  # type: ignore[attr-defined]
    for name, module in (("nccl", package), ("nccl.bindings", inner), (found.__name__, found)):
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_calls_reach_the_bindings_as_they_are(bindings: Bindings) -> None:
    library = Nccl()
    assert library.ncclGetVersion() == (0, 23203)
    assert library.ncclCommInitRankConfig(2, b"x" * 128, 1, 0) == (0, 7)
    assert bindings.config.cta_policy is None  # which releases without it need not know
    assert library.ncclCommInitRankConfig(2, b"x" * 128, 1, 2) == (0, 7)
    assert bindings.config.cta_policy == 2
    assert library.ncclMemAlloc(512) == (0, 7)
    assert library.ncclCommWindowRegister("comm", 7, 512, 1) == (0, 7)
    assert library.ncclAllReduce(16, 16, 4, 7, 0, "comm", 5) == (0,)
    assert library.ncclRedOpCreatePreMulSum(0.5, DATA_TYPE["bfloat16"], "comm") == (0, 17)
    assert bindings.calls == [
        *[("comm_init_rank_config", (2, ("id", b"x" * 128), 1, 99))] * 2,
        ("mem_alloc", (512,)), ("comm_window_register", ("comm", 7, 512, 1)),
        ("all_reduce", (16, 16, 4, 7, 0, "comm", 5)),
        ("premul", (b"\0\x3f\0\0", 9, 1, "comm")),
    ]


def test_a_status_has_its_name_or_its_number(bindings: Bindings) -> None:
    said = "unhandled cuda error; last error: the cable is out"
    for number, name in ((0, "ncclSuccess"), (5, "ncclInvalidUsage"), (8, "ncclTimeout"),
                         (9, "ncclResult 9"), (100, "ncclResult 100")):
        assert Nccl().error_text(number) == (name, said)


@pytest.mark.parametrize(("call", "given", "binding", "passed"), [
    ("ncclCommDestroy", ("c",), "comm_destroy", ("c",)),
    ("ncclCommAbort", ("c",), "comm_abort", ("c",)),
    ("ncclMemFree", (512,), "mem_free", (512,)),
    ("ncclCommWindowDeregister", ("c", 7), "comm_window_deregister", ("c", 7)),
    ("ncclRedOpDestroy", (17, "c"), "red_op_destroy", (17, "c")),
    ("ncclGroupStart", (), "group_start", ()), ("ncclGroupEnd", (), "group_end", ()),
    # sendbuff, recvbuff, count, datatype, op, comm, stream; without an op where nothing is reduced
    ("ncclReduceScatter", (16, 32, 4, 7, 2, "c", 5), "reduce_scatter", (16, 32, 4, 7, 2, "c", 5)),
    ("ncclAllGather", (16, 32, 4, 7, "c", 5), "all_gather", (16, 32, 4, 7, "c", 5)),
    ("ncclAllReduce", (16, 32, 4, 7, 2, "c", 5), "all_reduce", (16, 32, 4, 7, 2, "c", 5)),
])
def test_calls_without_results(bindings: Bindings, call: str, given: tuple[Any, ...], binding: str,
                               passed: tuple[Any, ...]) -> None:
    library = Nccl()
    assert getattr(library, call)(*given) == (0,)
    assert bindings.calls == [(binding, passed)]
    bindings.status = 5
    assert getattr(library, call)(*given) == (5,)


@pytest.mark.parametrize(("call", "given", "value"), [
    ("ncclGetUniqueId", (), b""), ("ncclMemAlloc", (512,), 0),
    ("ncclCommInitRankConfig", (1, b"", 0, 0), None),
    ("ncclCommWindowRegister", ("c", 1, 1, 1), None)])
def test_nothing_is_the_result_of_a_call_that_failed(bindings: Bindings, call: str,
                                                     given: tuple[Any, ...], value: Any) -> None:
    bindings.status = 5
    assert getattr(Nccl(), call)(*given) == (5, value)


@pytest.mark.parametrize("call", [
    lambda n: n.ncclGetUniqueId(), lambda n: n.ncclCommInitRankConfig(1, b"", 0, 0),
    lambda n: n.ncclCommDestroy("c"), lambda n: n.ncclCommAbort("c"),
    lambda n: n.ncclRedOpDestroy(1, "c"), lambda n: n.ncclMemAlloc(1), lambda n: n.ncclMemFree(1),
    lambda n: n.ncclCommWindowRegister("c", 1, 1, 1),
    lambda n: n.ncclCommWindowDeregister("c", 1),
    lambda n: n.ncclGroupStart(), lambda n: n.ncclGroupEnd(),
    lambda n: n.ncclAllReduce(0, 0, 1, 7, 0, "c", 0),
])
def test_a_failure_is_a_code_with_its_name_and_the_last_error(bindings: Bindings,
                                                              call: Any) -> None:
    library = Nccl()
    bindings.status = 1
    with pytest.raises(CallFailed, match=r"ncclUnhandledCudaError \[1\]: unhandled cuda error; "
                                         r"last error: the cable is out \(rank 1\)"):
        check(library, "call", call(library), "rank 1")


def test_without_the_bindings_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nccl", None)
    with pytest.raises(MissingLibrary, match=r"NCCL cannot be loaded.*rawnn\[nccl12\]"):
        Nccl()


def test_the_library_itself_says_what_it_refuses() -> None:
    requires.module("nccl.bindings.nccl")
    library = Nccl()
    assert library.ncclGetVersion()[1] >= 22000
    assert len(library.ncclGetUniqueId()[1]) == 128
    from nccl.bindings import nccl

    result = library.ncclAllReduce(0, 0, 4, DATA_TYPE["float32"], 0, nccl.Comm(0), 0)
    with pytest.raises(CallFailed, match=r"ncclInvalidArgument \[4\]: .*comm argument is NULL"):
        check(library, "ncclAllReduce", result)


def test_the_bindings_are_imported_only_when_used() -> None:
    code = "import sys, rawnn.cuda.libs.nccl, rawnn.cuda.libs.collectives\n" \
           "import rawnn.sim.nccl\n" \
           "assert not [m for m in sys.modules if m.partition('.')[0] in ('nccl', 'mpi4py')]"
    subprocess.run([sys.executable, "-c", code], check=True)


class FailingCollectives:
    """An NCCL of which the call number `fail_at` within a group fails; it lists the calls."""

    def __init__(self, fail_at: int) -> None:
        self.fail_at, self.calls = fail_at, list[str]()

    def error_text(self, code: int) -> tuple[str, str]:
        return f"STATUS_{code}", "as the library words it"

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> tuple[int]:
            inside = sum("Group" not in each for each in self.calls)
            self.calls.append(name)
            return (5 if "Group" not in name and inside == self.fail_at else 0,)

        return call


@pytest.mark.parametrize("fail_at", [0, 1, 2])
@pytest.mark.parametrize("kind", [AllReduce, ReduceScatter, AllGather])
def test_a_failure_of_any_tensor_of_a_bucket_is_reported(kind: type[Collective],
                                                         fail_at: int) -> None:
    """A later tensor that succeeds must not hide it, and the group is ended."""
    api = FailingCollectives(fail_at)
    context = cast(Any, SimpleNamespace(api=api, communicator="comm"))
    whole_and_part = 1 if kind is AllReduce else 2
    collective = kind(context, "three gradients", [(4, 7, 0)] * 3)
    with pytest.raises(CallFailed, match=rf"{kind.call} failed with STATUS_5 \[5\].*"
                                         rf"three gradients"):
        collective.run(9, *range(16, 16 + 3 * whole_and_part))
    assert api.calls == ["ncclGroupStart", *[kind.call] * (fail_at + 1), "ncclGroupEnd"]
    sound = FailingCollectives(-1)
    context.api = sound
    kind(context, "three gradients", [(4, 7, 0)] * 3).run(9, *range(16, 16 + 3 * whole_and_part))
    assert sound.calls == ["ncclGroupStart", *[kind.call] * 3, "ncclGroupEnd"]
