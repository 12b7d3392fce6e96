"""Types in mangled names, as g++ writes them and c++filt reads them."""

from __future__ import annotations

import pytest

from rawnn.cuda.compiling.mangled import read_variable

LISTS = {
    "bcahstijlmxyfdewDsDiDnno":
        "bool, char, signed char, unsigned char, short, unsigned short, int, unsigned int, long, "
        "unsigned long, long long, unsigned long long, float, double, long double, wchar_t, "
        "char16_t, char32_t, nullptr_t, __int128, unsigned __int128",
    "PKfKPfKS2_PViPVKiPS3_PS5_RiRKiOi":
        "const float*, float* const, const float* const, int*, const int*, float**, "
        "const float* const*, int&, const int&, int&",
    "1PPS1_PKS1_S1_N1a1QEPS6_S6_": "P, P*, const P*, P, a::Q, a::Q*, a::Q",
    "1VILb1ELi7ELm9ELc97EES1_ILb0ELin7ELm0ELc98EEPS2_":
        "V<true, 7, 9, 97>, V<false, -7, 0, 98>, V<true, 7, 9, 97>*",
    "4PackIJEES1_IJiEES1_IJi1PS1_IJS4_fEEEES1_IJPKiS8_EE":
        "Pack, Pack<int>, Pack<int, P, Pack<P, float>>, Pack<const int*, const int*>",
    "N1a1b1RIfLi3EEENS3_IfLin4EEEPNS3_INS1_1QELi3EEENS2_1MENS3_IPK1PLi0EEE":
        "a::b::R<float, 3>, a::b::R<float, -4>, a::b::R<a::Q, 3>*, a::b::M, a::b::R<const P*, 0>",
    "N5Outer5InnerENS1_1GIiEENS3_I1PE1HEPNS3_IS2_EE":
        "Outer::Inner, Outer::G<int>, Outer::G<P>::H, Outer::G<Outer::Inner>*",
    "St6vectorIiSaIiEES1_IS3_SaIS3_EESaIcESs":
        "std::vector<int, std::allocator<int>>, std::vector<std::vector<int, std::allocator<int>>, "
        "std::allocator<std::vector<int, std::allocator<int>>>>, std::allocator<char>, std::string",
    "NSt7__cxx115dequeIiEE": "std::__cxx11::deque<int>",
    "PFifEPFvvEPA3_iRA4_A5_f": "function*, function*, int**, float**&",
    "N12_GLOBAL__N_11UEN1a12_GLOBAL__N_11WE": "U, a::W",
    "KN1a1QES2_VKiDhDuu6__bf16": "const a::Q, a::Q, const int, _Float16, char8_t, __bf16",
}
"""Arguments of `List` in `template char seen<List<...>>`, and the types in C++."""


@pytest.mark.parametrize(("mangled", "types"), LISTS.items(), ids=LISTS)
def test_arguments_of_a_template(mangled: str, types: str) -> None:
    (found,) = read_variable(f"_Z4seenI4ListIJ{mangled}EEE").arguments
    assert str(found) == f"List<{types}>"


def test_components_are_counted_in_base_36() -> None:
    """S_ is the first component, S0_ the second, and SA_ the twelfth."""
    names = [f"1{chr(ord('a') + n)}" for n in range(14)]
    (found,) = read_variable(f"_Z4seenI4ListIJ{''.join(names)}S1_S9_SA_SC_EEE").arguments
    assert [str(each) for each in found.arguments[14:]] == ["a", "i", "j", "l"]


@pytest.mark.parametrize("wrong", [
    "4seenIiE", "_Z4seenIiEx", "_Z4seenIi", "_Z4seenI4LisE", "_Z4seenIS5_E", "_Z4seenIT_E",
    "_Z4seenINEE", "_Z4seenILi3E", "_Z4seenIA3iE", "_Z0E",
])
def test_names_that_cannot_be_read(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read|expected|stands for nothing|without parts"):
        read_variable(wrong)
