// What the instructions of inline PTX do, by their names with all qualifiers.
#include "arguments.h"

namespace twin {

namespace {

// -- registers -------------------------------------------------------------------------------------

Action pure_action(std::string_view name, const Arguments& a) {
  for (const PureName& known : kPure) {
    if (known.name != name) continue;
    const auto inputs = static_cast<std::size_t>(known.inputs);
    if (a.size() != inputs + 1 || !is_place(a[0], known.written)) return {};
    for (std::size_t i = 1; i <= inputs; ++i) {
      if (!is_value(a[i], known.read)) return {};
    }
    return [a, inputs, operation = known.operation](Frame& frame) {
      std::uint64_t values[3] = {};
      for (std::size_t i = 0; i < inputs; ++i) values[i] = value_of(frame, a[i + 1]);
      assign(frame, a[0], pure(operation, values[0], values[1], values[2]));
    };
  }
  return {};
}

Action mov(Words& words, const Arguments& a) {
  const unsigned int bytes = take_size(words);
  if (!words.end() || bytes == 0 || a.size() != 2) return {};
  if (a[0].what == kVector) {  // apart
    const unsigned int each = bytes / 2;
    if (!are(a[0], 2, each) || !is_place(a[1], bytes)) return {};
    return [a, each](Frame& frame) {
      const Wide from = a[1].what == kRegister ? frame.registers[a[1].index] : Wide{value_of(frame, a[1])};
      assign(frame, a[0].parts[0], each == 8 ? from.low : from.low & 0xffffffffu);
      assign(frame, a[0].parts[1], each == 8 ? from.high : from.low >> 32);
    };
  }
  if (!is_place(a[0], bytes)) return {};
  if (a[1].what == kVector) {  // together
    const unsigned int each = bytes / 2;
    if (each < 4 || !are(a[1], 2, each)) return {};
    return [a, each](Frame& frame) {
      const std::uint64_t low = value_of(frame, a[1].parts[0]);
      const std::uint64_t high = value_of(frame, a[1].parts[1]);
      if (each == 8) {
        frame.registers[a[0].index] = {low, high};
      } else {
        assign(frame, a[0], low | high << 32);
      }
    };
  }
  const bool special = a[1].what == kSpecial && a[1].bytes == bytes;
  if (bytes == 16 || (!special && !is_value(a[1], bytes))) return {};
  return [a](Frame& frame) { assign(frame, a[0], value_of(frame, a[1])); };
}

Action setp(Words& words, const Arguments& a) {
  const bool equal = words.take("eq");
  if (!equal && !words.take("ne")) return {};
  if (take_size(words) != 4 || !words.end() || a.size() != 3) return {};
  if (!is_place(a[0], 0) || !is_value(a[1], 4) || !is_value(a[2], 4)) return {};
  return [a, equal](Frame& frame) {
    assign(frame, a[0], (word_of(frame, a[1]) == word_of(frame, a[2])) == equal);
  };
}

Action selp(Words& words, const Arguments& a) {
  if (take_size(words) != 4 || !words.end() || a.size() != 4) return {};
  if (!is_place(a[0], 4) || !is_value(a[1], 4) || !is_value(a[2], 4) || !is_place(a[3], 0)) return {};
  return [a](Frame& frame) {
    assign(frame, a[0], word_of(frame, a[value_of(frame, a[3]) != 0 ? 1 : 2]));
  };
}

// Our kernels look so at the marks of what they have loaded: a | (b ^ c) with b from memory.
Action lop3(Words& words, const Arguments& a) {
  constexpr std::uint64_t kLooks = 0xf6;
  if (!words.take("b32") || !words.end() || a.size() != 5 || a[4].what != kNumber) return {};
  for (int i = 0; i < 4; ++i) {
    if (!is_value(a[i], 4)) return {};
  }
  return [a](Frame& frame) {
    const std::uint64_t table = a[4].number;
    unsigned int x[3], result = 0;
    for (int i = 0; i < 3; ++i) x[i] = word_of(frame, a[i + 1]);
    for (int bit = 0; bit < 32; ++bit) {
      const unsigned int row = (x[0] >> bit & 1u) << 2 | (x[1] >> bit & 1u) << 1 | (x[2] >> bit & 1u);
      result |= static_cast<unsigned int>(table >> row & 1u) << bit;
    }
    assign(frame, a[0], result);
    if (table == kLooks && ((x[1] ^ x[2]) & 1u) == 0) found(x[1]);
  };
}

// -- memory ----------------------------------------------------------------------------------------

enum class Space32 { kGlobal, kOwn, kAny };
std::optional<Space32> take_space(Words& words) {
  if (words.take("global")) return Space32::kGlobal;
  if (words.take("shared") || words.take("shared::cta")) return Space32::kOwn;
  if (words.take("shared::cluster")) return Space32::kAny;
  return {};
}

// ld and st: by what they order, at which scope; one whose scope does not reach the other blocks is, to
// them, like one that orders nothing.
Action access(Words& words, const Arguments& a, bool store) {
  const auto asked = take_order(words);
  const auto scope = take_scope(words);
  const auto space = take_space(words);
  const std::size_t count = take_count(words);
  const unsigned int bytes = take_size(words);
  if (!space || bytes == 0 || !words.end() || a.size() != 2) return {};
  if (asked.has_value() != scope.has_value() || (asked && *space != Space32::kGlobal)) return {};
  const Argument& data = a[store ? 1 : 0];
  const Argument& at = a[store ? 0 : 1];
  const unsigned int all = bytes * static_cast<unsigned int>(count);
  if (!are(data, count, bytes) || !is_address(at, *space == Space32::kGlobal ? 8 : 4) || all > 16) return {};
  if (asked == (store ? Order::kAcquire : Order::kRelease)) return {};
  if (store && asked == Order::kRelease) return {};  // nobody needs it yet
  const Order order = asked && *scope == Scope::kGrid ? *asked : Order::kWeak;
  const auto gather = [data, count, bytes](const Frame& frame, unsigned char* to) {
    for (std::size_t i = 0; i < count; ++i) {
      const Argument& one = part(data, i);
      const Wide value = one.what == kRegister ? frame.registers[one.index]
                                               : Wide{value_of(frame, one), 0};
      std::memcpy(to + i * bytes, &value, bytes);
    }
  };
  const auto scatter = [data, count, bytes](Frame& frame, const unsigned char* from) {
    for (std::size_t i = 0; i < count; ++i) {
      Wide value;
      std::memcpy(&value, from + i * bytes, bytes);
      assign(frame, part(data, i), value.low);
      if (bytes == 16) frame.registers[part(data, i).index] = value;
    }
  };
  return [=, space = *space](Frame& frame) {
    alignas(16) unsigned char words[16];
    if (store) gather(frame, words);
    if (space == Space32::kGlobal) {
      void* const pointer = pointer_of(frame, at);
      store ? store_global(pointer, words, all, order) : load_global(words, pointer, all, order);
    } else {
      const unsigned int address = space == Space32::kOwn ? own_address(frame, at) : word_of(frame, at);
      store ? store_shared(address, words, all) : load_shared(words, address, all);
    }
    if (!store) scatter(frame, words);
  };
}

Action store_async(Words& words, const Arguments& a) {
  if (!words.take("shared::cluster.mbarrier::complete_tx::bytes")) return {};
  const std::size_t count = take_count(words);
  if (take_size(words) != 4 || !words.end() || a.size() != 3) return {};
  if (!is_address(a[0], 4) || !are(a[1], count, 4) || !is_address(a[2], 4)) return {};
  return [a, count](Frame& frame) {
    unsigned int values[4];
    for (std::size_t i = 0; i < count; ++i) values[i] = word_of(frame, part(a[1], i));
    send(word_of(frame, a[0]), values, 4 * static_cast<unsigned int>(count), word_of(frame, a[2]));
  };
}

Action reduce(Words& words, const Arguments& a) {
  const auto order = take_order(words);
  const auto scope = take_scope(words);
  if (!order || !scope || *order == Order::kAcquire || !words.take("global.add.u32")) return {};
  if (!words.end() || a.size() != 2 || !is_address(a[0], 8) || !is_value(a[1], 4)) return {};
  return [a, order = *scope == Scope::kGrid ? *order : Order::kWeak](Frame& frame) {
    add_global(static_cast<unsigned int*>(pointer_of(frame, a[0])), word_of(frame, a[1]), order);
  };
}

Action mapa(Words& words, const Arguments& a) {
  if (!words.take("shared::cluster.u32") || !words.end() || a.size() != 3) return {};
  if (!is_place(a[0], 4) || !is_value(a[1], 4) || !is_value(a[2], 4)) return {};
  return [a](Frame& frame) {
    assign(frame, a[0], in_block(word_of(frame, a[1]), word_of(frame, a[2])));
  };
}

// -- copies ----------------------------------------------------------------------------------------

Action bulk_copy(Words& words, const Arguments& a) {
  if (words.take("commit_group")) return without_operands(words, a, commit_stores);
  if (words.take("wait_group")) {
    const bool read = words.take("read");
    return wait_action(words, a, [read](int left) { wait_for_stores(left, read); });
  }
  if (words.take("tensor.2d")) {
    if (words.take("global.shared::cta.tile.bulk_group")) {
      if (!words.end() || a.size() != 2 || !is_address(a[0], 8, 2) || !is_address(a[1], 4)) return {};
      return [a](Frame& frame) {
        const Arguments& at = a[0].parts[1].parts;
        store_tile(pointer_of(frame, a[0]), int_of(frame, at[1]), int_of(frame, at[0]),
                   own_address(frame, a[1]));
      };
    }
    if (!words.take("shared::cluster.global.tile.mbarrier::complete_tx::bytes")) return {};
    const bool many = words.take("multicast::cluster");
    if (!words.end() || a.size() != (many ? 4 : 3) || !is_address(a[0], 4)) return {};
    if (!is_address(a[1], 8, 2) || !is_address(a[2], 4) || (many && !is_value(a[3], 2))) return {};
    return [a, many](Frame& frame) {
      const Arguments& at = a[1].parts[1].parts;
      const unsigned int to = own_address(frame, a[0]), barrier = own_address(frame, a[2]);
      const int row = int_of(frame, at[1]), column = int_of(frame, at[0]);
      if (many) {
        load_tile_to_blocks(to, pointer_of(frame, a[1]), row, column, barrier, word_of(frame, a[3]));
      } else {
        load_tile(to, pointer_of(frame, a[1]), row, column, barrier);
      }
    };
  }
  if (!words.take("shared::cluster.global.mbarrier::complete_tx::bytes") || !words.end()) return {};
  if (a.size() != 4 || !is_address(a[0], 4) || !is_address(a[1], 8) || !is_value(a[2], 4) ||
      !is_address(a[3], 4)) {
    return {};
  }
  return [a](Frame& frame) {
    load_bulk(own_address(frame, a[0]), pointer_of(frame, a[1]), int_of(frame, a[2]),
              own_address(frame, a[3]));
  };
}

Action copy(Words& words, const Arguments& a) {
  if (!words.take("async")) return {};
  if (words.take("bulk")) return bulk_copy(words, a);
  if (words.take("commit_group")) return without_operands(words, a, commit_copies);
  if (words.take("wait_group")) return wait_action(words, a, wait_for_copies);
  if (words.take("wait_all")) return without_operands(words, a, [] { wait_for_copies(-1); });
  const bool past_l1 = words.take("cg");
  if (!past_l1 && !words.take("ca")) return {};
  if (!words.take("shared.global") || !words.end() || a.size() < 3 || a.size() > 4) return {};
  if (!is_address(a[0], 4) || !is_address(a[1], 8) || !is_value(a[2], 4)) return {};
  if (a.size() == 4 && !is_value(a[3], 4)) return {};
  return [a, past_l1](Frame& frame) {
    const int bytes = int_of(frame, a[2]);
    if (past_l1 ? bytes != 16 : bytes != 4 && bytes != 8 && bytes != 16) {
      fail("cp.async of %d bytes, at %p", bytes, self->here);
    }
    copy_async(own_address(frame, a[0]), pointer_of(frame, a[1]), bytes,
               a.size() == 4 ? int_of(frame, a[3]) : bytes);
  };
}

// -- barriers and fences ---------------------------------------------------------------------------

Action mbarrier(Words& words, const Arguments& a) {
  if (words.take("init.shared::cta.b64") && words.end()) {
    if (a.size() != 2 || !is_address(a[0], 4) || !is_value(a[1], 4)) return {};
    return [a](Frame& frame) { init_barrier(own_address(frame, a[0]), int_of(frame, a[1])); };
  }
  const bool arrives = words.take("arrive");
  const bool expects = words.take("expect_tx");
  const bool waits = !arrives && !expects && words.take("try_wait.parity");
  if (!arrives && !expects && !waits) return {};
  const Order order = take_order(words).value_or(waits ? Order::kAcquire : Order::kRelease);
  const Scope scope = take_scope(words).value_or(Scope::kBlock);
  const bool remote = words.take("shared::cluster");
  if ((!remote && !words.take("shared::cta") && !words.take("shared")) || !words.take("b64") || !words.end()) {
    return {};
  }
  if (waits) {
    if (remote || order == Order::kRelease || a.size() != 3) return {};
    if (!is_place(a[0], 0) || !is_address(a[1], 4) || !is_value(a[2], 4)) return {};
    return [a, order, scope](Frame& frame) {
      assign(frame, a[0], try_wait(own_address(frame, a[1]), int_of(frame, a[2]), order, scope));
    };
  }
  const std::size_t first = arrives ? 1 : 0;
  if (order == Order::kAcquire || a.size() != first + 1 + expects || (arrives && a[0].what != kSink)) return {};
  if (!is_address(a[first], 4) || (expects && !is_value(a[first + 1], 4))) return {};
  if (!arrives && order != Order::kRelaxed) return {};
  return [=](Frame& frame) {
    const unsigned int address = remote ? word_of(frame, a[first]) : own_address(frame, a[first]);
    if (expects) expect(address, int_of(frame, a[first + 1]));
    if (arrives) arrive(address, order, scope);
  };
}

Action cluster_barrier(Words& words, const Arguments& a) {
  if (!words.take("cluster")) return {};
  const bool arrives = words.take("arrive");
  if (!arrives && !words.take("wait")) return {};
  const Order order = take_order(words).value_or(arrives ? Order::kRelease : Order::kAcquire);
  words.take("aligned");
  if (order == (arrives ? Order::kAcquire : Order::kRelease)) return {};
  if (!arrives && order != Order::kAcquire) return {};
  if (!arrives) return without_operands(words, a, wait_for_cluster);
  return without_operands(words, a, [order] { arrive_at_cluster(order); });
}

Action fence(Words& words, const Arguments& a) {
  if (words.take("mbarrier_init.release.cluster")) return without_operands(words, a, fence_barrier_init);
  if (!words.take("proxy.async")) return {};
  if (words.take("global")) return without_operands(words, a, [] {});  // not of shared memory
  if (!words.take("shared::cta")) words.take("shared::cluster");
  return without_operands(words, a, fence_proxy_async);
}

Action dependents(Words& words, const Arguments& a) {
  if (words.take("wait")) return without_operands(words, a, wait_for_kernels);
  if (words.take("launch_dependents")) return without_operands(words, a, [] {});
  return {};
}

}  // namespace

Action action_of(std::string_view name, const Arguments& arguments) {
  static const std::map<std::string_view, Action (*)(Words&, const Arguments&)> kKnown = {
      {"mov", mov}, {"setp", setp}, {"selp", selp}, {"lop3", lop3}, {"red", reduce}, {"mapa", mapa},
      {"cp", copy}, {"mbarrier", mbarrier}, {"barrier", cluster_barrier}, {"fence", fence},
      {"ldmatrix", matrices}, {"movmatrix", transpose}, {"mma", product}, {"wgmma", warpgroup},
      {"setmaxnreg", registers}, {"griddepcontrol", dependents},
      {"ld", [](Words& words, const Arguments& a) { return access(words, a, false); }},
      {"st", [](Words& words, const Arguments& a) {
         return words.take("async") ? store_async(words, a) : access(words, a, true);
       }},
  };
  if (Action found = pure_action(name, arguments)) return found;
  Words words(name);
  const auto known = kKnown.find(words.take());
  return known == kKnown.end() ? Action{} : known->second(words, arguments);
}

}  // namespace twin
