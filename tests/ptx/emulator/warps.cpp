// What the lanes of a warp do together: shuffles, fragments, and the products of warpgroups.
#include "runtime.h"

namespace twin {

void Gather::add(Thread& thread) {
  known_ = join(known_, thread.known);
  proxied = join(proxied, thread.proxied);
  published = join(published, thread.published);
  pending = join(pending, thread.pending);
  seen = join(seen, thread.seen);
  finished = join(finished, thread.finished);
  events_.insert(events_.end(), thread.events.begin(), thread.events.end());
  own_.push_back({who_of(thread.block->number, thread.number), thread.clock, thread.copied});
  const Who first = who_of(thread.block->number, thread.number / 32 * 32);
  if (thread.overlay != nullptr &&
      (overlays_.empty() || overlays_.back() != std::pair{first, thread.overlay})) {
    overlays_.emplace_back(first, thread.overlay);
  }
  ++thread.clock;
}

const Vector* Gather::vector() {
  if (own_.empty()) return known_;
  Vector* const made = Vector::make(machine.blocks, known_);
  const unsigned int count = machine.threads;
  Chunk* chunk = nullptr;
  std::vector<bool> own(machine.blocks);
  const auto chunk_of = [&](Who who) {
    const unsigned int block = who >> 16;
    if (!own[block]) {
      const Chunk* const before = made->of[block];
      made->of[block] =
          Chunk::make(std::max(2 * count, before == nullptr ? 0 : before->size), before);
      own[block] = true;
    }
    return const_cast<Chunk*>(made->of[block]);
  };
  const auto raise = [](std::uint32_t& clock, std::uint32_t to) { clock = std::max(clock, to); };
  for (const Own& one : own_) {
    chunk = chunk_of(one.who);
    raise(chunk->clock[one.who & 0xffffu], one.clock);
    raise(chunk->clock[count + (one.who & 0xffffu)], one.copied);
  }
  for (const auto& [first, overlay] : overlays_) {
    chunk = chunk_of(first);
    const unsigned int place = first & 0xffffu;
    for (unsigned int i = 0; i < 32 && place + i < count; ++i) {
      raise(chunk->clock[place + i], overlay->clock[0][i]);
      raise(chunk->clock[count + place + i], overlay->clock[1][i]);
    }
  }
  if (!events_.empty()) {
    Vector* const over = Vector::make(machine.blocks, seen);
    std::vector<bool> copied(machine.blocks);
    for (const auto& [who, clock] : events_) {
      const std::uint32_t place = who & 0xffffu;
      const Chunk*& chunk = over->of[who >> 16];
      if (!copied[who >> 16]) {
        chunk = Chunk::make(std::max(count, chunk == nullptr ? 0 : chunk->size), chunk);
        copied[who >> 16] = true;
      }
      raise(const_cast<Chunk*>(chunk)->clock[place], clock);
    }
    seen = over;
    events_.clear();
  }
  own_.clear();
  overlays_.clear();
  known_ = made;
  return made;
}

void learn(Thread& thread, const Vector* vector, const Gather& other) {
  thread.known = join(vector, thread.known);
  thread.overlay = nullptr;
  thread.proxied = join(other.proxied, thread.proxied);
  thread.published = join(other.published, thread.published);
  thread.pending = join(other.pending, thread.pending);
  thread.seen = join(other.seen, thread.seen);
  thread.finished = join(other.finished, thread.finished);
}

const Vector* everything(Thread& thread) {
  Gather all;
  all.add(thread);
  return all.vector();
}

Who hand_out(Block& block) {
  if (block.next_place > 0xffff) fail("a block uses too many barriers");
  return who_of(block.number, block.next_place++);
}

namespace {

// Waits for the lanes in `mask`; the last of them calls act(meeting), with what all have brought.
template <typename Act>
void meet(const char* operation, unsigned int mask, void* gift, Act act) {
  Warp& warp = *self->warp;
  if ((mask & ~warp.exists) != 0) {
    fail("a warp mask names lanes that the block does not have, at %p", self->here);
  }
  if ((mask >> self->lane & 1u) == 0) {
    fail("a lane is missing from its own warp mask, at %p", self->here);
  }
  Meeting* found = nullptr;
  for (Meeting& meeting : warp.meetings) {
    if (meeting.mask == mask) found = &meeting;
    // Lanes that wait for each other in different ones; those of a part of the warp may be behind.
    if (meeting.mask != mask && (meeting.arrived & mask) != 0 &&
        (meeting.mask >> self->lane & 1u) != 0) {
      fail("lanes of a warp pass other masks, at %p", self->here);
    }
  }
  if (found == nullptr) {
    warp.meetings.push_back({mask, 0, operation, {}});
    found = &warp.meetings.back();
  }
  if (found->operation != operation) {
    fail("lanes of a warp are at %s and at %s, at %p", found->operation, operation, self->here);
  }
  found->arrived |= 1u << self->lane;
  found->gift[self->lane] = gift;
  if (found->arrived != mask) {
    pause(operation);
    return;
  }
  const Meeting whole = *found;
  *found = warp.meetings.back();
  warp.meetings.pop_back();
  auto* const executed = static_cast<Overlay*>(arena.take(sizeof(Overlay)));
  std::memset(executed, 0, sizeof *executed);
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    Thread& thread = *warp.lane[lane];
    const Overlay* const before = thread.executed;
    for (int i = 0; before != nullptr && i < 32; ++i) {
      executed->clock[0][i] = std::max(executed->clock[0][i], before->clock[0][i]);
    }
    executed->clock[0][lane] = thread.clock++;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0) warp.lane[lane]->executed = executed;
  }
  act(whole);
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) != 0) wake(*warp.lane[lane]);
  }
}

constexpr unsigned int kAll = 0xffffffffu;

}  // namespace

std::uint64_t shuffle(Shuffle kind, unsigned int mask, std::uint64_t value, int argument,
                      int width) {
  EMULATOR_HERE;
  struct Gift {
    std::uint64_t value, result;
    int source;
  };
  const int lane = self->lane;
  const int first = lane / width * width;
  int source = lane;
  if (kind == Shuffle::kXor) source = lane ^ argument;
  if (kind == Shuffle::kDown) source = lane + argument;
  if (kind == Shuffle::kUp) source = lane - argument;
  if (kind == Shuffle::kIndex) source = first + argument % width;
  if (source < first || source >= first + width) source = lane;
  Gift gift{value, 0, source};
  meet("a shuffle", mask, &gift, [&](const Meeting& meeting) {
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1u) == 0) continue;
      auto* const one = static_cast<Gift*>(meeting.gift[i]);
      // From a lane that takes no part comes what CUDA leaves undefined: all ones, a NaN.
      one->result = (mask >> one->source & 1u) != 0
                        ? static_cast<Gift*>(meeting.gift[one->source])->value
                        : ~std::uint64_t{0};
    }
  });
  return gift.result;
}

unsigned int ballot(unsigned int mask, bool predicate) {
  EMULATOR_HERE;
  struct Gift {
    bool value;
    unsigned int result;
  } gift{predicate, 0};
  meet("a vote", mask, &gift, [&](const Meeting& meeting) {
    unsigned int result = 0;
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1u) != 0 && static_cast<Gift*>(meeting.gift[i])->value) result |= 1u << i;
    }
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1u) != 0) static_cast<Gift*>(meeting.gift[i])->result = result;
    }
  });
  return gift.result;
}

// The only one of these that orders memory.
void sync_warp(unsigned int mask) {
  EMULATOR_HERE;
  meet("__syncwarp()", mask, self, [&](const Meeting&) {
    Warp& warp = *self->warp;
    Gather channels;
    const Vector* known = nullptr;
    auto* const overlay = static_cast<Overlay*>(arena.take(sizeof(Overlay)));
    std::memset(overlay, 0, sizeof *overlay);
    const Overlay* last = nullptr;
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1u) == 0) continue;
      Thread& thread = *warp.lane[i];
      known = join(known, thread.known);
      channels.proxied = join(channels.proxied, thread.proxied);
      channels.published = join(channels.published, thread.published);
      channels.pending = join(channels.pending, thread.pending);
      channels.seen = join(channels.seen, thread.seen);
      channels.finished = join(channels.finished, thread.finished);
      if (thread.overlay != nullptr && thread.overlay != last) {
        last = thread.overlay;
        for (int j = 0; j < 64; ++j) {
          std::uint32_t& clock = overlay->clock[j / 32][j % 32];
          clock = std::max(clock, last->clock[j / 32][j % 32]);
        }
      }
      overlay->clock[0][i] = std::max(overlay->clock[0][i], thread.clock);
      overlay->clock[1][i] = std::max(overlay->clock[1][i], thread.copied);
      ++thread.clock;
    }
    for (int i = 0; i < 32; ++i) {
      if ((mask >> i & 1u) == 0) continue;
      Thread& thread = *warp.lane[i];
      learn(thread, known, channels);
      thread.overlay = overlay;
    }
  });
}

void load_matrices(unsigned int* words, unsigned int row, bool transposed, int many) {
  struct Gift {
    unsigned int* words;
    unsigned int row;
  } gift{words, row};
  if (static_cast<int>(self->number % 32) < 8 * many) {
    touch_shared(row, 16, kRead, who_of(self->block->number, self->number), self->clock);
  }
  meet(transposed ? "ldmatrix.trans" : "ldmatrix", kAll, &gift, [&](const Meeting& meeting) {
    for (int matrix = 0; matrix < many; ++matrix) {
      std::uint16_t element[8][8];
      unsigned int banks = 0;  // in fours
      for (int i = 0; i < 8; ++i) {
        const auto* const from = static_cast<Gift*>(meeting.gift[8 * matrix + i]);
        banks |= 1u << (from->row >> 4 & 7u);
        std::memcpy(element[i], shared_pointer(block_of(from->row), from->row, 16), 16);
      }
      if (banks != 0xffu) fail("ldmatrix: rows of a matrix share banks, at %p", self->here);
      for (int lane = 0; lane < 32; ++lane) {
        const int g = lane / 4;
        const int t = lane % 4;
        const unsigned int low = transposed ? element[2 * t][g] : element[g][2 * t];
        const unsigned int high = transposed ? element[2 * t + 1][g] : element[g][2 * t + 1];
        static_cast<Gift*>(meeting.gift[lane])->words[matrix] = low | high << 16;
      }
    }
  });
}

unsigned int transpose_matrix(unsigned int word) {
  struct Gift {
    unsigned int word, result;
  } gift{word, 0};
  meet("movmatrix", kAll, &gift, [&](const Meeting& meeting) {
    std::uint16_t element[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const unsigned int from = static_cast<Gift*>(meeting.gift[lane])->word;
      element[lane / 4][lane % 4 * 2] = static_cast<std::uint16_t>(from);
      element[lane / 4][lane % 4 * 2 + 1] = static_cast<std::uint16_t>(from >> 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
      const unsigned int low = element[lane % 4 * 2][lane / 4];
      const unsigned int high = element[lane % 4 * 2 + 1][lane / 4];
      static_cast<Gift*>(meeting.gift[lane])->result = low | high << 16;
    }
  });
  return gift.result;
}

namespace {

constexpr int bits_of(Number kind) {
  return kind == Number::kTf32 ? 32 : kind == Number::kBf16 || kind == Number::kF16 ? 16 : 8;
}

struct Fragments {
  unsigned int a[4], b[2];
  float* c;
  unsigned int* packed;  // sums of float16 instead
};

// c += a b, summed in double and rounded once: no GPU rounds better, and none by more than tests allow.
void multiply_warp(Number a_kind, Number b_kind, const Meeting& meeting) {
  const int bits = bits_of(a_kind);
  const int each = 32 / bits;  // of a word
  const int depth = 8 * each;
  double a[16][32], b[32][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& from = *static_cast<const Fragments*>(meeting.gift[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < each; ++i) {
      const auto element = [&](Number kind, unsigned int word) {
        return double{decode(kind, bits == 32 ? word : word >> i * bits & ((1u << bits) - 1))};
      };
      for (int half = 0; half < 2; ++half) {
        const int k = (t + 4 * half) * each + i;
        a[g][k] = element(a_kind, from.a[2 * half]);
        a[g + 8][k] = element(a_kind, from.a[2 * half + 1]);
        b[k][g] = element(b_kind, from.b[half]);
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& to = *static_cast<const Fragments*>(meeting.gift[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8;
      const int column = lane % 4 * 2 + i % 2;
      const unsigned int shift = i % 2 * 16;
      double sum = to.packed == nullptr
                       ? double{to.c[i]}
                       : double{decode(Number::kF16, to.packed[i / 2] >> shift & 0xffffu)};
      for (int k = 0; k < depth; ++k) sum += a[row][k] * b[k][column];
      if (to.packed == nullptr) {
        to.c[i] = stored(sum);
      } else {
        unsigned int& word = to.packed[i / 2];
        word = (word & ~(0xffffu << shift)) |
               encode(Number::kF16, static_cast<float>(sum)) << shift;
      }
    }
  }
}

}  // namespace

void multiply(Number a_kind, Number b_kind, float* c, const unsigned int* a,
              const unsigned int* b) {
  Fragments gift{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, c, nullptr};
  meet("mma", kAll, &gift,
       [&](const Meeting& meeting) { multiply_warp(a_kind, b_kind, meeting); });
}

void multiply_f16(unsigned int* c, const unsigned int* a, const unsigned int* b) {
  Fragments gift{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, nullptr, c};
  meet("mma.f16", kAll, &gift, [&](const Meeting& meeting) {
    multiply_warp(Number::kF16, Number::kF16, meeting);
  });
}

}  // namespace twin
