// Operands of GEMMs that are rows of a matrix by a list of indices, as the inputs that many networks share.
// Their copies are requested behind those of the other operand, which wait for no list. The weights of a
// network are then read and written past the inputs: L2 keeps those, as other networks read them, too.
#pragma once

// An operand whose row i is row list[i] of a matrix. A kernel takes a pointer to it in place of one to the
// matrix. The list is complete before the kernel starts.
template <typename T>
struct IndexedRows {
  const T* matrix;
  const int* list;
};

// What a kernel's pointer to an operand stands for.
template <typename SOURCE>
struct Operand {
  using Element = SOURCE;
  static constexpr bool kIndexed = false;
};
template <typename T>
struct Operand<IndexedRows<T>> {
  using Element = T;
  static constexpr bool kIndexed = true;
};
template <typename SOURCE>
using ElementOf = typename Operand<SOURCE>::Element;
