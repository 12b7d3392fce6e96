"""Texts of CUDA C split at their brackets, commas and names."""

from __future__ import annotations

import pytest

from rawnn.common.errors import ConfigError
from rawnn.cuda.compiling.c_text import closing, declarator, namespaces, split, split_expression


@pytest.mark.parametrize(("text", "parts"), [
    ("", []), (" \n", []), ("a", ["a"]), (" a , b ", ["a", "b"]), ("a,", ["a", ""]),
    (",a", ["", "a"]), (",", ["", ""]), ("f(a, b), c", ["f(a, b)", "c"]),
    ("A<int, 3>, {1, 2}, x[i, j]", ["A<int, 3>", "{1, 2}", "x[i, j]"]),
    ("A<B<1, 2>, (3 < 4, 5 > 6)>, c", ["A<B<1, 2>, (3 < 4, 5 > 6)>", "c"]),
])
def test_parts_between_commas_outside_of_brackets(text: str, parts: list[str]) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(("text", "start", "end"), [
    ("()", 0, 1), ("a(b[c]{d})e", 1, 9), ("f(a < b) > c", 1, 7), ("A<B<1>>", 1, 6),
    ("A<(1 > 0)>", 1, 9), ("x{ y<3> }", 1, 8),
])
def test_the_bracket_that_closes_another(text: str, start: int, end: int) -> None:
    assert closing(text, start) == end


def test_a_bracket_that_nothing_closes_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"the '\{' on line 3 is never closed"):
        closing("a\nb\nc { (", 6)


@pytest.mark.parametrize(("expression", "name", "arguments"), [
    ("k", "k", []), (" a :: b ", "a::b", []), ("::k<float>", "k", ["float"]),
    ("a::k< unsigned  int,A<1, 2> , 3 >", "a::k", ["unsigned int", "A<1, 2>", "3"]),
    ("k<>", "k", []),
])
def test_an_expression_is_a_name_and_arguments(expression: str, name: str,
                                               arguments: list[str]) -> None:
    assert split_expression(expression) == (name, arguments)


@pytest.mark.parametrize("expression", ["", "3", "k<", "a b", "k<1>x", "a::"])
def test_another_text_is_no_expression(expression: str) -> None:
    with pytest.raises(ConfigError, match="is not a kernel name such as softmax<float>"):
        split_expression(expression)


@pytest.mark.parametrize(("text", "name", "parameters"), [
    ("__global__ void k(int a, B<2> b) {}", "k", "int a, B<2> b"),
    ("__global__ void __launch_bounds__(32, 2) k ( ) {}", "k", " "),
    ("__global__ __cluster_dims__(2, 1, 1) static void a_b(float* x);", "a_b", "float* x"),
])
def test_a_declarator_is_the_name_ahead_of_the_parameters(text: str, name: str,
                                                          parameters: str) -> None:
    found = declarator(text, len("__global__"))
    assert found is not None
    assert (found[0], text[found[1] : found[2]]) == (name, parameters)


def test_a_specialisation_has_no_declarator_and_what_cannot_be_read_a_line() -> None:
    assert declarator("__global__ void k<float>(float* x) {}", 10) is None
    for text in ("\n\n__global__ ; void k();", "\n\n__global__ void"):
        with pytest.raises(ConfigError, match="cannot read the __global__ function on line 3"):
            declarator(text, 12)


def test_namespaces_and_where_they_begin_and_end() -> None:
    text = "namespace a { namespace b::inline c { x } } inline namespace v { y } namespace { z"
    assert [(text[begin:end].strip(), name) for begin, end, name in namespaces(text)] == [
        ("namespace b::inline c { x } }", "a"), ("x }", "b::c"), ("y }", ""), ("z", "")]
