// wgmma: products of four warps that read shared memory by descriptors, in the background.
#include "runtime.h"

namespace twin {

namespace {

struct Matrix {
  unsigned int start, leading, stride;
  bool swizzled;
  explicit Matrix(unsigned long long bits)
      : start(static_cast<unsigned int>(bits & 0x3fffu) << 4),
        leading(static_cast<unsigned int>(bits >> 16 & 0x3fffu) << 4),
        stride(static_cast<unsigned int>(bits >> 32 & 0x3fffu) << 4),
        swizzled(bits >> 62 == 1) {
    if (bits >> 62 > 1 || (bits >> 49 & 7u) != 0) fail("a descriptor of wgmma that is not known");
  }
  // Of the byte `deep` (0 .. 31) along the inner dimension of element `along` of the other one. Wide
  // operands have `size` bytes an element, and `deep` counts elements.
  unsigned int address(bool wide, int size, int along, int deep) const {
    unsigned int at;
    if (!swizzled) {
      if (wide) fail("a wide operand of wgmma without swizzle");
      at = start + static_cast<unsigned>(along / 8) * stride +
           static_cast<unsigned>(deep / 16) * leading + static_cast<unsigned>(along % 8 * 16 + deep % 16);
      return at;
    }
    if (wide) {
      const int across = 128 / size;
      at = start + static_cast<unsigned>(along / across) * leading +
           static_cast<unsigned>(deep / 8) * stride +
           static_cast<unsigned>(deep % 8 * 128 + along % across * size);
    } else {
      at = start + static_cast<unsigned>(along / 8) * stride +
           static_cast<unsigned>(along % 8 * 128 + deep);
    }
    return at ^ (at >> 7 & 7u) << 4;
  }
};

int size_of(Number kind) {
  return kind == Number::kTf32 ? 4 : kind == Number::kBf16 || kind == Number::kF16 ? 2 : 1;
}

Warpgroup& group_of(Thread& thread) {
  Warpgroup& group = thread.block->groups[thread.number / 128];
  if (group.who == 0) group.who = hand_out(*thread.block);
  if (thread.block->threads.size() < thread.number / 128 * 128 + 128) {
    fail("wgmma in less than four warps, at %p", thread.here);
  }
  return group;
}

void touch(const Matrix& operand, bool wide, Number kind, int first, int count, Who who,
           std::uint32_t clock) {
  const int size = size_of(kind);
  if (wide) {
    for (int deep = 0; deep < 32 / size; ++deep) {
      for (int along = first; along < first + count; along += 16 / size) {
        touch_shared(operand.address(true, size, along, deep), 16, kRead | kProxy, who, clock);
      }
    }
  } else {
    for (int along = first; along < first + count; ++along) {
      for (int deep = 0; deep < 32; deep += 16) {
        touch_shared(operand.address(false, size, along, deep), 16, kRead | kProxy, who, clock);
      }
    }
  }
}

void execute(Block& block, const Product& product) {
  static double a[64][32], b[256][32];
  const int size = size_of(product.a_kind);
  const int depth = 32 / size;
  const auto read = [&](const Matrix& operand, bool wide, Number kind, int along, int k) {
    const unsigned int at = operand.address(wide, size, along, wide ? k : k * size);
    const unsigned char* const from = shared_pointer(block, at, static_cast<unsigned>(size));
    unsigned int bits = 0;
    for (int i = 0; i < size; ++i) bits |= unsigned{from[i]} << 8 * i;
    return double{decode(kind, bits)};
  };
  const Matrix left(product.a), right(product.b);
  for (int row = 0; row < 64 && !product.rows; ++row) {
    for (int k = 0; k < depth; ++k) a[row][k] = read(left, product.wide_a, product.a_kind, row, k);
  }
  for (int thread = 0; thread < 128 && product.rows; ++thread) {  // as a fragment A of mma.sync
    for (int i = 0; i < 4; ++i) {
      double* const row = a[thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8];
      const unsigned int word = *product.words[thread][i];
      for (int j = 0; j < 4 / size; ++j) {
        row[(thread % 4 + i / 2 * 4) * (4 / size) + j] =
            double{decode(product.a_kind, size == 4 ? word : word >> 16 * j & 0xffffu)};
      }
    }
  }
  for (int column = 0; column < product.columns; ++column) {
    for (int k = 0; k < depth; ++k) {
      b[column][k] = read(right, product.wide_b, product.b_kind, column, k);
    }
  }
  for (int thread = 0; thread < 128; ++thread) {
    const int g = thread % 32 / 4;
    const int t = thread % 4;
    for (int i = 0; i < product.columns / 2; ++i) {
      const int row = thread / 32 * 16 + g + i / 2 % 2 * 8;
      const int column = i / 4 * 8 + 2 * t + i % 2;
      float& to = *product.d[thread][static_cast<std::size_t>(i)];
      double sum = product.add ? double{to} : 0.0;
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[column][k];
      to = stored(sum);
    }
  }
}

}  // namespace

namespace {

bool alike(const Product& a, const Product& b) {
  return a.columns == b.columns && a.a_kind == b.a_kind && a.b_kind == b.b_kind &&
         a.wide_a == b.wide_a && a.wide_b == b.wide_b && a.a == b.a && a.b == b.b &&
         a.add == b.add && a.rows == b.rows && a.group == b.group;
}

}  // namespace

// `d` and the words of `a`, if any, are read when the product is done, which is later.
void multiply_async(Product&& asked, std::vector<float*>&& d, const unsigned int* const* a) {
  Warpgroup& group = group_of(*self);
  if (!self->products_fenced) fail("a product of wgmma without fence_products(), at %p", self->here);
  const unsigned int lane = self->number % 128;
  const std::uint32_t turn = self->products_asked++;
  asked.group = self->product_group;
  if (lane % 32 == 0) {
    if (!asked.rows) {
      touch(Matrix(asked.a), asked.wide_a, asked.a_kind, static_cast<int>(lane / 2), 16,
            group.who, asked.group);
    }
    touch(Matrix(asked.b), asked.wide_b, asked.b_kind, 0, asked.columns, group.who, asked.group);
  }
  if (turn >= group.first_product + group.products.size()) {
    group.products.push_back(std::move(asked));
  } else if (!alike(group.products[turn - group.first_product], asked)) {
    fail("the warps of a warpgroup ask for different products, at %p", self->here);
  }
  Product& product = group.products[turn - group.first_product];
  product.d[lane] = std::move(d);
  if (a != nullptr) std::copy_n(a, 4, product.words[lane]);
  if (++product.asked == 128) {
    for (Thread* thread : group.waiting) wake(*thread);
    group.waiting.clear();
  }
}

void wait_for_products(int pending) {
  Warpgroup& group = group_of(*self);
  const std::uint32_t groups = self->product_group - 1;
  const auto left = static_cast<std::uint32_t>(pending);
  if (groups <= left) return;
  const std::uint32_t up_to = groups - left;
  while (!group.products.empty() && group.products.front().group <= up_to) {
    if (group.products.front().asked < 128) {
      group.waiting.push_back(self);
      pause("products of its warpgroup");
      continue;
    }
    execute(*self->block, group.products.front());
    group.products.pop_front();
    ++group.first_product;
  }
  self->known = with(self->known, machine.blocks, group.who, up_to);
}

void fence_products() { self->products_fenced = true; }

void commit_products() {
  self->products_fenced = false;
  ++self->product_group;
}

}  // namespace twin
