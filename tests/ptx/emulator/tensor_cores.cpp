// Inline PTX of products: fragments from shared memory, mma.sync, wgmma, and the registers for it.
#include "arguments.h"

namespace twin {

Action matrices(Words& words, const Arguments& a) {
  if (!words.take("sync.aligned.m8n8")) return {};
  const int many = words.take("x4") ? 4 : words.take("x2") ? 2 : words.take("x1") ? 1 : 0;
  const bool transposed = words.take("trans");
  if (many == 0 || !(words.take("shared") || words.take("shared::cta")) || !words.take("b16")) return {};
  if (!words.end() || a.size() != 2 || a[0].what != kVector || !are(a[0], many, 4)) return {};
  if (!is_address(a[1], 4)) return {};
  return [a, many, transposed](Frame& frame) {
    unsigned int found[4];
    load_matrices(found, own_address(frame, a[1]), transposed, many);
    for (int i = 0; i < many; ++i) assign(frame, a[0].parts[i], found[i]);
  };
}

Action transpose(Words& words, const Arguments& a) {
  if (!words.take("sync.aligned.m8n8.trans.b16") || !words.end() || a.size() != 2) return {};
  if (!is_place(a[0], 4) || !is_value(a[1], 4)) return {};
  return [a](Frame& frame) { assign(frame, a[0], transpose_matrix(word_of(frame, a[1]))); };
}

// d = a b + c by a warp: a step of 32 bytes along the inner dimension, or half a one.
Action product(Words& words, const Arguments& a) {
  if (!words.take("sync.aligned")) return {};
  const std::string_view shape = words.take();
  if (!words.take("row.col")) return {};
  const bool packed = words.take("f16");
  if (!packed && !words.take("f32")) return {};
  const auto left = take_number(words), right = take_number(words);
  if (!left || !right || !words.take(packed ? "f16" : "f32") || !words.end() || a.size() != 4) return {};
  if (size_of(*left) != size_of(*right) || (size_of(*left) > 1 && *left != *right)) return {};
  const bool half = shape == "m16n8k8" && size_of(*left) == 2;
  if (!half && shape != "m16n8" + depth_of(*left)) return {};
  if (packed && (half || *left != Number::kF16)) return {};
  const std::size_t sums = packed ? 2 : 4;
  if (!are(a[0], sums, 4) || !are(a[1], half ? 2 : 4, 4) || !are(a[2], half ? 1 : 2, 4) ||
      !are(a[3], sums, 4)) {
    return {};
  }
  return [=, left = *left, right = *right](Frame& frame) {
    unsigned int x[4] = {}, y[2] = {}, c[4] = {};
    for (std::size_t i = 0; i < a[1].parts.size(); ++i) x[i] = word_of(frame, a[1].parts[i]);
    for (std::size_t i = 0; i < a[2].parts.size(); ++i) y[i] = word_of(frame, a[2].parts[i]);
    for (std::size_t i = 0; i < sums; ++i) c[i] = word_of(frame, a[3].parts[i]);
    if (packed) {
      multiply_f16(c, x, y);
    } else {
      float sum[4];
      std::memcpy(sum, c, sizeof sum);
      multiply(left, right, sum, x, y);
      std::memcpy(c, sum, sizeof sum);
    }
    for (std::size_t i = 0; i < sums; ++i) assign(frame, a[0].parts[i], c[i]);
  };
}

Action warpgroup(Words& words, const Arguments& a) {
  if (words.take("fence.sync.aligned")) return without_operands(words, a, fence_products);
  if (words.take("commit_group.sync.aligned")) return without_operands(words, a, commit_products);
  if (words.take("wait_group.sync.aligned")) return wait_action(words, a, wait_for_products);
  if (!words.take("mma_async.sync.aligned")) return {};
  const std::string shape(words.take());
  const std::size_t deep = shape.find('k');
  if (!words.take("f32") || !shape.starts_with("m64n") || deep == shape.npos) return {};
  const auto left = take_number(words), right = take_number(words);
  if (!left || !right || !words.end() || a.size() < 6) return {};
  if (size_of(*left) != size_of(*right) || (size_of(*left) > 1 && *left != *right)) return {};
  const int columns = std::atoi(shape.c_str() + 4);
  if (shape.substr(deep) != depth_of(*left) || columns % 8 != 0 || columns < 8 || columns > 256) return {};
  const bool rows = a[1].what == kVector;
  // Behind the predicate: signs of a and b, which stay, and of 16 bits whether each is wide.
  const std::size_t flags = size_of(*left) == 2 ? (rows ? 3 : 4) : 2;
  if (a.size() != 4 + flags || !is_place(a[3], 0) || !is_place(a[2], 8)) return {};
  if (!are(a[0], static_cast<std::size_t>(columns) / 2, 4)) return {};
  if (rows ? !are(a[1], 4, 4) : !is_place(a[1], 8)) return {};
  for (std::size_t i = 4; i < a.size(); ++i) {
    if (a[i].what != kNumber || (i < 6 ? a[i].number != 1 : a[i].number > 1)) return {};
  }
  for (const Argument& one : a[0].parts) {
    if (one.what != kOperand) return {};
  }
  for (const Argument& one : a[1].parts) {
    if (one.what != kOperand) return {};
  }
  const bool wide_a = flags == 4 && a[6].number == 1;
  const bool wide_b = flags > 2 && a.back().number == 1;
  return [=, left = *left, right = *right](Frame& frame) {
    std::vector<float*> d;
    d.reserve(a[0].parts.size());
    for (const Argument& one : a[0].parts) {
      if (!frame.operands[one.index].writable) fail("wgmma writes what is only read, at %p", self->here);
      d.push_back(static_cast<float*>(place_of(frame, one)));
    }
    const unsigned int* x[4];
    for (std::size_t i = 0; i < a[1].parts.size(); ++i) {
      x[i] = static_cast<const unsigned int*>(place_of(frame, a[1].parts[i]));
    }
    multiply_async({columns, left, right, wide_a, wide_b, rows ? 0 : value_of(frame, a[1]),
                    value_of(frame, a[2]), value_of(frame, a[3]) != 0, rows, 0},
                   std::move(d), rows ? x : nullptr);
  };
}

Action registers(Words& words, const Arguments& a) {
  if (!words.take("inc") && !words.take("dec")) return {};
  if (!words.take("sync.aligned.u32")) return {};
  return wait_action(words, a, [](int count) {
    if (count < 24 || count > 256 || count % 8 != 0) fail("setmaxnreg %d, at %p", count, self->here);
  });
}

}  // namespace twin
