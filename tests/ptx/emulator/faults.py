"""Faults that are planted in the kernels, one at a time.

A fault changes one place of one source by a rule (RULES), or of the text of a kernel that is
written for a network (WRITTEN). attempts.py plants it and looks whether the CPU emulator finds it;
harmless.py says of those that change nothing that anybody could see why that is so.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rawnn.persistent.sharding import DSMEM, L2
from rawnn.ptx import SOURCES
from tests.persistent.test_emulator import DECAY, Launch

GENERATED = "train_steps"
"""Stands for the kernels that are written for a network."""
WRITTEN: tuple[tuple[Any, ...], ...] = (
    ("softmax, SGD", 2, 2, "SFGF"), ("Adam in an order", 4, 1, "FSFF"),
    ("float16, float32 inputs", 2, 1, "FGFF", (2.0**23, 0.0)),
    ("float16, float32 inputs", 2, 1, "SFSF", (2.0**22, 0.0), 0, 1, DSMEM, False, 0),
    ("binary cross-entropy, tanh", 4, 2, "FGFS"), ("a wide middle", 4, 1, "SFGF"),
    ("float16 inputs, normalised", 2, 3, ""), ("long rows", 2, 1, "SF"),
    ("float32 inputs, a schedule", 8, 1, "FSFF"), ("bfloat16", 2, 1, ""),
    ("clusters share sums", 1, 8, ""), ("more outputs than a register file", 2, 3, "FG"),
    ("Adam in an order, state far", 2, 1, "FSFF"), ("Adam in an order, state far", 2, 3, "FSFF"),
    ("float16", 1, 1, "", (64.0, 1998.0)), ("float16", 2, 3, "SFGF", (2.0**20, 5.0)),
    ("float16, Adam, tanh", 2, 2, "FSFF", (2.0**20, 0.0)),
    ("float16, mean squares", 4, 3, "FGFS", (2.0**21, 0.0)),
    (DECAY, 2, 3, "SFGF"), ("stochastic rounding, Adam", 4, 1, "FSFF"),
    ("Adam in an order", 4, 2, "FSFF", (1.0, 0.0), 3),
    ("an autoencoder", 2, 1, "SFS", (1.0, 0.0), 2), ("softmax, SGD", 8, 1, "FGGG"),
    ("a wide middle", 2, 2, "FGFG", (1.0, 0.0), 0, 2),
    ("a wide middle", 4, 1, "FGSF", (1.0, 0.0), 0, 1, L2),
    ("clusters share sums", 12, 1, "SF", (1.0, 0.0), 0, 1, L2),
    ("float16", 2, 1, "FSFG", (2.0**20, 5.0), 0, 1, L2),
    ("softmax, SGD", 12, 1, "FGGG", (1.0, 0.0), 0, 1, L2),
    ("more outputs than a register file", 2, 3, "FS"),
    ("softmax, SGD", 3, 1, "FGFS", (1.0, 0.0), 0, 1, L2),
    ("five layers", 4, 1, "SFSFSF", (1.0, 0.0), 0, 1, L2),
    ("softmax, SGD", 4, 1, "FSFF", (1.0, 0.0), 0, 1, L2),
    ("one layer in an order", 4, 3, "FS", (1.0, 0.0), 0, 1, DSMEM, True),
    ("one layer in an order", 8, 1, "FS", (1.0, 0.0), 0, 1, DSMEM, True),
    ("one layer in an order", 20, 1, "FS", (1.0, 0.0), 0, 1, L2, True),
    ("Adam in an order", 12, 2, "FGFS", (1.0, 0.0), 0, 1, L2, True),
    ("bfloat16, float32 inputs in an order", 2, 3, "SFGF"), ("bfloat16, long rows", 2, 8, "SF"),
)
"""Some of them: a problem of tests/persistent, ranks, groups, and types of the boundaries, "" as
the cost model takes them; of float16 the loss scale and its count of good steps; the examples of a
partial batch that ends it, how many micro-batches a batch is, where blocks exchange, whether the
kernel goes on to the next epoch, and the room for copies of weights. Between them they take every
template of persistent/*.cuh."""

_EXTENT = r"(?:batch|rows|cols|m|n|k|classes|features|left|count|extent|stages|steps|examples)"
_PLACE = r"(?:lane|thread|warp|row|column|col|quad|tile|unit|stage|slot|first)"
_FACTOR = r"(?:scale|factor|share|rate|lr|decay|of_row|copy_scale|inverse|alpha|momentum|slope)"
_VIA_L2 = r"[\s\S]*generations\["
"""What follows in a kernel whose blocks exchange via L2. There a transport expects nothing, waits
where it reads, and counts micro-batches."""

RULES: tuple[tuple[str, str, str | Callable[[re.Match[str]], str]], ...] = (
    ("barrier", r"__syncthreads\(\);|__syncwarp\(\);|ptx::cluster_barrier\(\);"
                r"|sums\.(?:ready|done)\(\);|mailbox\.(?:opened|open)\([^;]*\);"
                r"|cluster_(?:arrive(?:_relaxed)?|wait)<\w+>\(\);"
                r"|ptx::init_barrier\([^;]*\);", ";"),
    ("barrier", r"__syncthreads_or", ""),
    ("meeting", r"ptx::grid_barrier\([^;]*\);", ";"),
    ("exchange", rf"transport\.expect<E\d+>\([^;]*\);(?!{_VIA_L2})"
                 r"|transport\.publish_flag<E\d+>\([^;]*\);"
                 rf"|(?:send_row|send_flags)<E\d+>\([^;]*\);|receive_flags<[^;]*;(?={_VIA_L2})"
                 r"|(?<![\w.:])(?<!void )(?:transport\.template )?(?:send|send_flag|publish"
                 r"|publish_flag|publish_by_lanes|flags|store)<E\b[^;<>]*>\([^;{]*\);"
                 r"|(?<![\w.:])(?<!void )(?:\w+(?:\.|::))?send(?:_one)?\([^;{]*\);"
                 r"|ptx::send4\w*\([^;]*\);|receive_changes<[^;]*;"
                 r"|(?<!void )\bsend_flagged\([^;{]*\);", ";"),
    ("generation", rf"\+\+exchanges;|transport\.end_micro_batch\(\);(?={_VIA_L2})", ";"),
    ("exchange", rf"transport\.wait<E\d+>\(\)(?!{_VIA_L2})", "transport.buffer()"),
    ("exchange", r"(?<![\w.])wait<E>\(\)(?=;| \+)", "buffer()"),
    ("exchange", r"i < SHAPE::kTpSize\b", "i < SHAPE::kTpSize - 1"),
    ("turn", r"\((\w+) & 1\)", "0"),
    ("turn", r">> 1 & 1", "& 1"),
    ("turn", r"(?<=micro_batch) (?:>> 1|\* E::kUses)(?= [:+])", ""),
    ("turn", r" \+ E::kNumber\b", ""),
    ("store", r"__stcg\([^;]*\);", ";"),
    ("mark", r"(unsigned int (?:overflow_)?flag_bit = )[^;]*;", r"\g<1>1u;"),
    ("mark", r"ptx::check_flag_bit\([^;]*;", ";"),
    ("mark", r"(?<!float4 )\b(?:without_flag_bit|round_for_flag_bit)\(", "("),
    ("mark", r" \^ \(micro_batch < \d+ \? 1u : 0u\)", ""),
    ("mark", r"(?<=next\[\d\]) - w\[\d\]", ""),
    ("generation", r"all_reduces_before \+ (?:span|u)\b", "all_reduces_before"),
    ("reset", r"(?:\*ticket|counters\[(?:i|thread)\]) = 0u;", ";"),
    ("fence", r"__threadfence\(\);|ptx::fence_\w+\(\);|ptx::publish_barriers\(\);", ";"),
    ("wait", r"(?<!void )pdl_wait\(\);|(?:ptx::)?wait_for_\w+(?:<[^;]*>)?\([^;{]*\);"
             r"|ptx::wait_for\([^;]*\);|mailbox\.receive\(\);|await_copies\([^;{]*\);", ";"),
    ("scope", r"(?<!void )\bwait_for_remote(?=\()", "wait_for"),
    ("wait for one too few", r"(wait_for_(?:copies|reads|products))<([^;>]*)>\(\);",
     r"\1<(\2) + 1>();"),
    ("group", r"(?:ptx::)?commit_\w+\(\);", ";"),
    ("arrival", r"ptx::arrive\w*\([^;]*\);", ";"),
    ("bound", rf"(?<![<\w]) < (?={_EXTENT}\b)", " <= "),
    ("bound", rf" >= (?={_EXTENT}\b)", " > "),
    ("bound", rf"\bmin\((\w+), {_EXTENT}[^()]*\)", r"(\1)"),
    ("bounds check", r"if \([^;{}()]*(?:\([^;{}()]*\)[^;{}()]*)*\) return;", ";"),
    ("zero fill", r"(?<!ffffu)(?<!\* 8\)) : 0(\.0f|u)?(?=[;,)])", lambda m: f" : 1{m[1] or ''}"),
    ("zero fill", r"(?<=ffffu) : 0u(?=[;,)])", " : 0xffffffffu"),  # of a mask
    ("zero fill", r"(?<=\* 8\)) : 0u(?=;)", " : 0x7c007c00u"),  # of two numbers of 16 bits
    ("zero fill", r"(?<=\w|\]) = 0(\.0f|u)(?=;)", r" = 1\1"),
    ("index", rf"\b({_PLACE}) ([*/%]) (\d+)\b", lambda m: f"{m[1]} {m[2]} {int(m[3]) + 1}"),
    ("index", rf"\b({_PLACE}) \+ (\d+)\b", lambda m: f"{m[1]} + {int(m[2]) + 1}"),
    ("index", rf"\[({_PLACE})\]", r"[\1 + 1]"),
    ("index", r"\[2 \* (?!k[A-Z])([a-z]\w*)\]", r"[2 * \1 + 1]"),
    ("scale", rf" \* {_FACTOR}\b(?:\[[^]]*\])?+(?!\()", ""),
    ("scale", rf"\b(?:\w+\.)*{_FACTOR} \* (?=[\w(])", ""),
    ("sign", rf"(?<=\w|\)) - (?={_FACTOR}\b|\(|largest|values|before|before\w*|mean)", " + "),
    ("sign", r" -= ", " += "),
    ("moment", r"(?<!double )(?<!double beta1, )\bbeta1\b", "beta2"),
    ("moment", r"(?<!double )(?<!double beta1, )\bbeta2\b(?!;)", "beta1"),
    ("moment", r"1\.0f - (beta\d)", r"\1"),
    ("pair", r"\(low, high\)", "(high, low)"),
)
"""What becomes of what, and what kind of fault that is."""

_LEFT_OUT = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*(?:\\\n[^\n]*)*|static_assert\([^;]*;|template <[^;{]*?>"
    r"|^struct [^\n]*|^[^\n]*constexpr[^\n]*;|asm[^;]*;", re.DOTALL | re.MULTILINE)


_QUIET = " ".join(f'_Pragma("GCC diagnostic ignored \\"-W{warning}\\"")' for warning in (
    "empty-body", "misleading-indentation", "unused-variable", "unused-but-set-variable",
    "unused-but-set-parameter", "maybe-uninitialized", "uninitialized", "unused-value"))


@dataclass(frozen=True)
class Fault:
    """`old` at `start` of a file becomes `new`."""

    file: str
    start: int
    old: str
    new: str
    kind: str

    @property
    def line(self) -> int:
        return text_of(self.file).count("\n", 0, self.start) + 1

    @property
    def name(self) -> str:
        """Stays the same while lines ahead of it come and go."""
        text = text_of(self.file)
        before = text.rfind("\n", 0, self.start) + 1
        line = text[before : text.find("\n", self.start)].strip()
        column = self.start - before
        same = [m.start() for m in re.finditer(re.escape(line), text)]
        turn = sum(place < self.start - column for place in same) + 1 if len(same) > 1 else 1
        return f"{self.file}: {self.kind}: {line} [{column}]" + (f" #{turn}" if turn > 1 else "")

    def planted(self, text: str) -> str:
        """The text with the fault, of which no compiler warns."""
        assert text[self.start : self.start + len(self.old)] == self.old
        return _QUIET + text[: self.start] + self.new + text[self.start + len(self.old):]


@cache
def written_files() -> dict[str, tuple[Any, ...]]:
    """The kernels of WRITTEN by the names that their faults give as the file."""
    return {f"{GENERATED} {how[0]}, {how[1]}x{how[2]} {how[3]}".rstrip()
            + "".join(f", {number} {what}" for number, what in zip(
                how[5:], ("left", "turns"), strict=False) if number > (what == "turns"))
            + "".join(f", {exchange}" for exchange in how[7:8] if exchange == L2)
            + ", turning" * any(how[8:9]): how for how in WRITTEN}


@cache
def text_of(file: str) -> str:
    """The text of a source, or of a kernel of WRITTEN."""
    if file in written_files():
        return Launch(*written_files()[file]).impl.code.text
    return (SOURCES / file).read_text()


def faults_of(file: str) -> Iterator[Fault]:
    """All that the rules make of a file, code only."""
    text = text_of(file)
    hidden = [m.span() for m in _LEFT_OUT.finditer(text)]
    for kind, pattern, new in RULES:
        for match in re.finditer(pattern, text):
            if any(a <= match.start() < b for a, b in hidden):
                continue
            yield Fault(file, match.start(), match[0], match.expand(new)
                        if isinstance(new, str) else new(match), kind)


@cache
def files() -> tuple[str, ...]:
    """Every source and header but the primitives, which test_instructions.py tests one by one."""
    return tuple(sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.cu*")
                        if path.parent.name != "device"))


@cache
def every() -> tuple[Fault, ...]:
    """All faults; of those at a place that is ARGUED, which every kernel that is written has, one
    for each argument."""
    found = [fault for file in files() for fault in faults_of(file)]
    argued: set[str] = set()
    for file in written_files():
        for fault in faults_of(file):
            why = argument(fault)
            if why not in argued:
                found.append(fault)
            argued |= {why} - {""}
    return tuple(found)


ARGUED: tuple[tuple[str, str], ...] = (
    (r"__syncwarp\(\);\s*fetch_rows", "it brings lanes together for their copies: a phase whose "
     "bytes nobody has announced yet does not end, as the announcement is its one arrival"),
    (r"cluster_wait<Shape>\(\);  // none has left", "a block that comes here has got all that "
     "others send to it, and sends nothing more"),
    (r" : 0\);\s*__syncthreads\(\);\s*(?:if \(thread >= \d+\) )?\{",
     "a launch of one step, which has no second turn, asks for a number that nobody uses"),
    (r"ptx::publish_barriers\(\);(?![\s\S]*Dsmem<)",
     "blocks exchange nothing, and rows are too short for the copy engine"),
    (r"slot \* 0;", "there is no state"),
    (r"(?<=[0-9][0-9]\);\n  )__syncthreads\(\);\n(?:  [^\n]*\n){0,4}  (?:for \()?int u = 0;"
     r"(?:(?!Gemm<)[\s\S])*convert_rows<",
     "nobody reads the copies of weights in 16 bits ahead of the barrier behind the inputs, which "
     "become floats first; where they are floats it is caught"),
)
"""Of the kernels that are written for a network: what a place in their text begins with at which a
fault changes nothing that anybody could see, and why."""


def argument(fault: Fault) -> str:
    """Why a fault in a kernel that is written changes nothing; "" of one that should be caught."""
    if fault.file not in written_files():
        return ""
    text = text_of(fault.file)
    return next((why for pattern, why in ARGUED if re.compile(pattern).match(text, fault.start)),
                "")


def sample(count: int, seed: int, among: Sequence[Fault] | None = None) -> list[Fault]:
    """Some of all faults, every kind and file as likely as it is frequent."""
    return random.Random(seed).sample(every() if among is None else among, count)
