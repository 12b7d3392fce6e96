"""Lowers ops to commands: the kernel, copy or library call of each op, bound to addresses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rawnn.common.cuda_text import CudaText
from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.batch import Batch, Job
from rawnn.cuda.compiling.launch_proof import Proof
from rawnn.cuda.device import Device
from rawnn.cuda.errors import check
from rawnn.cuda.launch import Arguments, Command, HostToDevice, KernelLaunch
from rawnn.cuda.stream import Stream
from rawnn.engine.runners.arguments import kernel_arguments, kernel_maps
from rawnn.graphs.early_starts import may_start_early_on_stream
from rawnn.plan.op import Op
from rawnn.plan.ops.collectives import ORDERING_TOKEN, pairs, wholes
from rawnn.plan.plan import Plan
from rawnn.plan.policy import Policy
from rawnn.ptx import source_path
from rawnn.ptx.instance_text import instance_text, with_instance_text
from rawnn.ptx.kernels import KernelImpl, kernel_for

if TYPE_CHECKING:
    from rawnn.cuda.libs.collectives import Collective, NcclContext, RankGroup
    from rawnn.cuda.libs.matmul import LtContext, MatmulPlan
    from rawnn.cuda.libs.softmax import CudnnContext, SoftmaxPlan
    from rawnn.cuda.memory import Source

Addresses = Mapping[str, int]
HostArrays = Mapping[str, NDArray[Any]]


def compilation_of(policy: Policy) -> Policy:
    """What compilation depends on of a policy: kernels of policies with the same are the same."""
    return Policy(pdl=policy.pdl)


class Lowering:
    """Makes commands on one device. Library handles are made when the first op needs them. Where
    the policy has `pdl`, kernels are compiled to wait and trigger, and launched on streams before
    those ahead of them have ended, where that is proved right. `team` are the ranks that reductions
    are done with."""

    def __init__(self, device: Device, policy: Policy | None = None,
                 team: RankGroup | None = None) -> None:
        self.device, self._team = device, team
        self._programmatic = policy is not None and policy.pdl
        self._closing = ExitStack()
        self._lt: LtContext | None = None
        self._cudnn: CudnnContext | None = None
        self._nccl: dict[str, NcclContext] = {}
        self._urgent: Stream | None = None
        self.libraries: dict[str, str] = {}

    def compile(self, plans: Iterable[Plan]) -> None:
        """Compile every kernel that the plans need."""
        self.device.finish(self.begin(plans))

    def begin(self, plans: Iterable[Plan]) -> Batch:
        """Start compiling them; `device.finish` waits for the end."""
        return self.device.begin(self._jobs(plans))

    def prepare(self, plans: Iterable[Plan]) -> None:
        """Load the libraries that the plans need and choose their algorithms. This takes tenths of
        a second, in which kernels can compile."""
        for plan in plans:
            for op in plan.ops:
                if op.impl == "cublas":
                    self._gemm_plan(op, plan)
                elif op.impl == "cudnn":
                    self._softmax_plan(op, plan)

    def _jobs(self, plans: Iterable[Plan]) -> list[Job]:
        wanted: dict[tuple[str, bool, bool], dict[str, None]] = {}
        written: dict[str, tuple[KernelImpl, dict[str, None]]] = {}
        for plan in plans:
            for op in plan.ops:
                if _is_kernel(op):
                    impl = kernel_for(op)
                    expression = impl.expression(op, plan)
                    if impl.code is not None:
                        written.setdefault(impl.source, (impl, {}))[1][expression] = None
                        continue
                    key = impl.source, impl.relocatable, impl.specific
                    wanted.setdefault(key, {})[expression] = None
        jobs = [Job(source, tuple(expressions), relocatable, self._programmatic, specific,
                    CudaText(text) if (text := _instance_source(source, expressions)) else None)
                for (source, relocatable, specific), expressions in wanted.items()]
        return jobs + [self._written(impl, tuple(expressions))
                       for impl, expressions in written.values()]

    def _written(self, impl: KernelImpl, expressions: tuple[str, ...]) -> Job:
        code = impl.code
        if code is not None and self.device.backend.name == "sim":
            code = code.simulated()
        return Job(impl.source, expressions, False, self._programmatic, impl.specific, code)

    def proof(self, op: Op, plan: Plan) -> Proof | None:
        """The proof about programmatic launches of the op's kernel; None for a user's kernel or a
        library call, or if they are not asked for."""
        if not self._programmatic or not _is_kernel(op):
            return None
        impl = kernel_for(op)
        return self.device.function(impl.source, impl.expression(op, plan), True).proof

    def commands(self, op: Op, plan: Plan, addresses: Addresses, host: HostArrays,
                 stream: Stream | None = None) -> list[Command]:
        """The commands that run `op`, in order, on `stream` (by default the device's own, which
        library calls always use). Raises ConfigError for an unknown impl."""
        stream = stream or self.device.stream
        if op.kind == "upload":
            return self._copies(op, plan, addresses, host, stream)
        if op.impl == "cublas":
            return [self._gemm(op, plan, addresses)]
        if op.impl == "cudnn":
            return [self._softmax(op, plan, addresses)]
        if op.impl == "nccl":
            return [self._collective(op, plan, addresses)]
        return [self._kernel(op, plan, addresses, stream)]

    def _kernel(self, op: Op, plan: Plan, addresses: Addresses, stream: Stream) -> Command:
        impl = kernel_for(op)
        expression = impl.expression(op, plan)
        function = self.device.function(impl.source, expression, self._programmatic)
        arguments = Arguments(
            function.signature, kernel_arguments(op, plan, function.signature, addresses),
            kernel_maps(op, plan, function.signature, self.device.driver))
        scalars = impl.scalars(op, plan)
        grid, block = impl.geometry(scalars)
        label = f"{op.name} ({expression} in {impl.source})"
        blocks = impl.cluster(scalars)
        return KernelLaunch(self.device.driver, stream, function.handle, label, grid, block,
                            arguments, impl.shared(scalars),
                            (blocks, 1, 1) if blocks > 1 else None,
                            self._programmatic and may_start_early_on_stream(
                                op, plan, function.proof),
                            impl.cooperative,
                            self._high_priority_stream().priority if op.attributes.get("urgent")
                            else 0, impl.carveout)

    def _copies(self, op: Op, plan: Plan, addresses: Addresses, host: HostArrays,
                stream: Stream) -> list[Command]:
        commands: list[Command] = []
        for role, source in (("x", "images"), ("y", "labels"), ("t", "targets")):
            if role not in op.operands:
                continue
            tensor, array = plan[op.operands[role]], host[op.operands[source]]
            commands.append(HostToDevice(
                self.device.driver, stream, f"{op.name} of {tensor.name}", role,
                addresses.get(tensor.name, 0),
                array.ctypes.data + op.attributes.get("first", 0) * array.strides[0],
                tensor.nbytes, array,
                stride=op.attributes["stride"] * array.strides[0],
            ))
        return commands

    def _gemm(self, op: Op, plan: Plan, addresses: Addresses) -> Command:
        from rawnn.cuda.libs.calls import LibraryCall

        gemm = self._gemm_plan(op, plan)
        output = "c" if op.kind == "matmul" else "partial"
        operands = {r: addresses.get(op.operands.get(r, ""), 0)
                    for r in ("a", "b", output, "bias", "workspace")}
        return LibraryCall(gemm, self.device.stream, f"{op.name} (cuBLASLt)", operands)

    def _gemm_plan(self, op: Op, plan: Plan) -> MatmulPlan:
        """The matmul plan of an op, cached by its shape."""
        from rawnn.cuda.libs.matmul import LtContext

        if op.kind not in ("matmul", "matmul_slices"):
            raise ConfigError(f"cuBLASLt does not compute the op '{op.name}' ({op.kind})")
        if self._lt is None:
            api = self.device.backend.cublaslt()
            self._lt = LtContext(api)
            self._closing.callback(self._lt.close)
            version = check(api, "cublasLtGetVersion", api.cublasLtGetVersion(),
                            "for matrix products")
            self.libraries["cublasLt"] = _library_version(version)
        output = "c" if op.kind == "matmul" else "partial"
        return self._lt.plan(
            **self._shape(op, plan), lda=plan[op.operands["a"]].ld, ldb=plan[op.operands["b"]].ld,
            ldc=plan[op.operands[output]].ld,
            workspace_limit=plan[op.operands["workspace"]].nbytes,
        )

    @staticmethod
    def _shape(op: Op, plan: Plan) -> dict[str, Any]:
        """The arguments of MatmulPlan for an op."""
        a = op.attributes
        shape = {k: a[k] for k in ("layout", "m", "n", "k", "alpha", "beta", "bias", "slices",
                                    "choice")
                 if k in a}
        output = plan[op.operands["c" if op.kind == "matmul" else "partial"]]
        return {**shape, "relu": a.get("activation") == "relu", "compute": a["compute"],
                "dtype": plan[op.operands["a"]].dtype, "output": output.dtype}

    def _softmax(self, op: Op, plan: Plan, addresses: Addresses) -> Command:
        from rawnn.cuda.libs.calls import LibraryCall

        operands = {r: addresses.get(op.operands[r], 0) for r in ("z", "p")}
        return LibraryCall(self._softmax_plan(op, plan), self.device.stream, f"{op.name} (cuDNN)",
                           operands)

    def _softmax_plan(self, op: Op, plan: Plan) -> SoftmaxPlan:
        """The softmax plan of an op, cached by its shape."""
        from rawnn.cuda.libs.softmax import CudnnContext

        if op.kind != "softmax":
            raise ConfigError(f"cuDNN does not compute the op '{op.name}' ({op.kind})")
        if self._cudnn is None:
            api = self.device.backend.cudnn()
            self._cudnn = CudnnContext(api)
            self._closing.callback(self._cudnn.close)
            version = check(api, "cudnnGetVersion", api.cudnnGetVersion(), "for softmax")
            self.libraries["cudnn"] = _library_version(version)
        z, p = plan[op.operands["z"]], plan[op.operands["p"]]
        rows, cols = z.shape
        return self._cudnn.plan(rows, cols, z.ld, p.ld)

    def _collective(self, op: Op, plan: Plan, addresses: Addresses) -> Command:
        from rawnn.cuda.libs.calls import CollectiveCall

        if self._team is None:
            raise ConfigError(f"'{op.name}' is of {plan.world_size} ranks, and this process is "
                              f"none of them")
        context = self._communicator(plan[op.operands["token"]].communicator)
        label, weight = f"{op.name} (NCCL)", op.attributes.get("weight", 1.0)
        roles = wholes(op)
        call: Collective
        if op.kind == "all_reduce":
            call = context.all_reduce(label, [_elements(op, plan, role) for role in roles], weight,
                                      op.attributes["reduce"] == "max")
        else:
            parts = [_elements(op, plan, part) for _, part in pairs(op)]
            roles = [role for pair in pairs(op) for role in pair]
            call = context.reduce_scatter(label, parts, weight) \
                if op.kind == "reduce_scatter" else context.all_gather(label, parts)
        operands = {role: addresses.get(op.operands[role], 0) for role in roles}
        return CollectiveCall(call, self.device.stream, label, operands,
                              self._high_priority_stream())

    def _high_priority_stream(self) -> Stream:
        """A stream of high priority, for collectives that the next step waits for."""
        if self._urgent is None:
            self._urgent = Stream(self.device.driver, urgent=True)
            self._closing.callback(self._urgent.close)
        return self._urgent

    def _communicator(self, name: str) -> NcclContext:
        """A communicator of all ranks, which all of them create at the same time."""
        from rawnn.cuda.libs.collectives import NcclContext

        assert self._team is not None
        if name not in self._nccl:
            context = NcclContext(self.device.backend.nccl(), self._team, name
                                  != ORDERING_TOKEN.communicator)
            self.libraries["nccl"] = _library_version(context.version)
            self._closing.callback(context.close)
            self._nccl[name] = context
        return self._nccl[name]

    def symmetric(self, communicator: str) -> Source:
        """Memory that all ranks map; the device's own if NCCL is too old for that."""
        from rawnn.cuda.libs.collectives import WINDOWS, SymmetricMemory

        if self._team is None or (context := self._communicator(communicator)).version \
                < WINDOWS:
            return self.device.memory
        return SymmetricMemory(context, self.device)

    def close(self) -> None:
        """Destroy the library handles; a second call is harmless."""
        self._closing.close()


def _instance_source(source: str, expressions: Collection[str]) -> str:
    """The text of a source with the text that its instances add; "" where they add none."""
    if not instance_text(expressions):
        return ""
    return with_instance_text(source_path(source).read_text(), expressions)


def _is_kernel(op: Op) -> bool:
    return op.kind != "upload" and op.impl not in ("cublas", "cudnn", "nccl")


def _elements(op: Op, plan: Plan, role: str) -> tuple[str, int]:
    """Dtype and number of elements of an operand, padding included."""
    tensor = plan[op.operands[role]]
    return tensor.dtype, tensor.nbytes // tensor.itemsize


def _library_version(number: int) -> str:
    """cuBLASLt's 120903, cuDNN's 92800 and NCCL's 22703 as "12.9.3", "9.28.0" and "2.27.3"."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
