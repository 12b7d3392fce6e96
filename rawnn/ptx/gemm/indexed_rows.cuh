// Operands of GEMMs that are rows of a matrix by a list of indices.
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
