"""What a `.cu` file says of itself, and what is wrong with it said by its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rawnn.common.errors import ConfigError
from rawnn.lab import simulated
from rawnn.lab.header import header
from rawnn.lab.kernel_files import kernel_of

SOURCE = """// A kernel.
/* rawnn
 * op = "bias_relu"
 * grid = ["cdiv(cols, 32)", "rows"]
 * block = 256
 * values = {n = "rows * cols"}
 */
__global__ void relu(float* x, int n) {}
"""


def test_a_header_is_toml_in_the_comment_that_begins_with_rawnn() -> None:
    assert header(SOURCE) == {"op": "bias_relu", "grid": ["cdiv(cols, 32)", "rows"], "block": 256,
                              "values": {"n": "rows * cols"}}
    assert header("/* rawnn\nblock = 32\n*/") == {"block": 32}


def test_a_header_may_be_lines_of_comments() -> None:
    text = SOURCE.replace("/* rawnn\n", "// rawnn\n").replace(" */\n", "").replace("\n * ", "\n// ")
    assert header(text) == header(SOURCE)
    assert header(text.replace("\n", "\r\n")) == header(SOURCE)
    assert header(SOURCE.replace("/* rawnn", "/** rawnn")) == header(SOURCE)
    with pytest.raises(ConfigError, match=r"mine\.cu, line 4: the header knows no 'blok'"):
        header("//\n// rawnn\n//\n//blok = 3", "mine.cu")


def test_what_has_none_has_none() -> None:
    assert header("/* about rawnn\nblock = 32 */ __global__ void f() {}") == {}
    assert header("// rawnn\n__global__ void f() {}") == {}


@pytest.mark.parametrize(("line", "message"), [
    ("grid = cdiv(n, 32)", r"mine.cu, line 3: the header is TOML, and this is none: .*in quotes"),
    ('gird = "n"', "mine.cu, line 3: the header knows no 'gird'; did you mean 'grid'"),
    ("block = true", "mine.cu, line 3: block = True should be a whole number or text in quotes"),
    ("cooperative = 1", "cooperative = 1 should be true or false"),
    ("[shape]\nx = 1", "mine.cu, line 3: the header knows no 'shape'; did you mean 'shapes'"),
])
def test_what_is_wrong_is_said_with_its_line(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        header(f"// A kernel.\n/* rawnn\n{line}\n*/", "mine.cu")


def test_each_of_several_kernels_has_its_header() -> None:
    text = "".join(f'/* rawnn\nkernel = "{name}"\nop = "{op}"\nblock = {block}\n*/\n'
                   for name, op, block in (("f<float>", "bias_relu", 32), ("g", "sgd", 64)))
    assert header(text, kernel="f<__half>")["block"] == 32
    assert header(text, kernel="g")["block"] == 64
    assert header(text, op="sgd")["block"] == 64
    for wanted in ({}, {"kernel": "h"}, {"op": "adam"}):
        with pytest.raises(ConfigError, match=r"kernel.cu has 2 headers, of f<float>, g: name one"):
            header(text, **wanted)


def test_arguments_override_a_files_header_and_tables_are_merged(tmp_path: Path) -> None:
    for folder in ("below", "other"):
        (tmp_path / folder).mkdir()
    file, device = tmp_path / "own.cu", simulated()
    file.write_text("""/* rawnn
kernel = "a"
defines = {TILE = 8, W = 1}
options = ["-DX"]
include = "below"
arch = "compute_80"
grid = "n"
block = 32
sizes = {n = 4, s = 3}
values = {by = 1, to = 2}
require = "n > 1"
reference = "x"
*/
__global__ void a(const float* x, float* y, int n, int s, float by, float to) { y[0] = TILE * W; }
__global__ void b(const float* x, float* y, int n, int s, float by, float to) { y[0] = TILE * W; }
""")

    def described(*name: str, **given: Any) -> list[Any]:
        kernel, work = kernel_of(file, *name, device=device, **given)
        source = kernel.source
        return [kernel.expression, dict(kernel.defines), source.options, source.include,
                source.arch, work.grid, work.block, work.sizes, work.values, work.require,
                work.reference, work.folder]

    below, other = tmp_path / "below", tmp_path / "other"
    assert described() == [
        "a", {"TILE": 8, "W": 1}, ("-DX",), (below,), "compute_80", "n", 32, {"n": 4, "s": 3},
        {"by": 1, "to": 2}, ["n > 1"], "x", tmp_path]
    assert described(
        "b", defines={"TILE": 16}, options=["-DY"], include=[other], arch="compute_90", block=64,
        sizes={"n": 5}, values={"to": 7}, require=["n > 2"], reference="2 * x") == [
        "b", {"TILE": 16, "W": 1}, ("-DX", "-DY"), (below, other), "compute_90", "n", 64,
        {"n": 5, "s": 3}, {"by": 1, "to": 7}, ["n > 2"], "2 * x", tmp_path]
    device.close()
