// What threads know of each other's past: vector clocks, for the check that accesses are ordered.
//
// An event is (who, clock). `who` is a place in a block: its threads, then the asynchronous copies of
// each of them, then what is handed out as needed (barriers in shared memory, groups of stores or
// of products). A Vector says for every place the latest clock that is known to have happened. It
// never changes once made, so that threads share it: after a barrier all have the same one.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace twin {

using Who = std::uint32_t;  // block << 16 | place
inline Who who_of(unsigned int block, unsigned int place) { return block << 16 | place; }

// Memory of one launch, freed as a whole.
class Arena {
 public:
  ~Arena() { clear(); }
  void clear() {
    for (void* part : parts_) std::free(part);
    if (bytes_ > std::size_t{64} << 20) malloc_trim(0);  // back to the system
    parts_.clear();
    left_ = 0;
    bytes_ = 0;
  }
  void* take(std::size_t bytes) {
    bytes = (bytes + 15) & ~std::size_t{15};
    if (bytes > left_) {
      const std::size_t part = std::max(bytes, std::size_t{1} << 20);
      parts_.push_back(std::malloc(part));
      next_ = static_cast<char*>(parts_.back());
      left_ = part;
      bytes_ += part;
    }
    void* const found = next_;
    next_ += bytes;
    left_ -= bytes;
    return found;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<void*> parts_;
  char* next_ = nullptr;
  std::size_t left_ = 0;
  std::size_t bytes_ = 0;
};
extern Arena arena;

struct Chunk {  // of one block
  std::uint32_t size;
  std::uint32_t clock[];
  static Chunk* make(std::uint32_t size, const Chunk* from) {
    auto* const made = static_cast<Chunk*>(arena.take(sizeof(Chunk) + size * sizeof(clock[0])));
    const std::uint32_t copied = from == nullptr ? 0 : std::min(size, from->size);
    made->size = size;
    if (copied != 0) std::memcpy(made->clock, from->clock, copied * sizeof(clock[0]));
    std::memset(made->clock + copied, 0, (size - copied) * sizeof(clock[0]));
    return made;
  }
};

struct Vector {
  std::uint32_t blocks;
  const Chunk* of[];
  static Vector* make(std::uint32_t blocks, const Vector* from) {
    auto* const made = static_cast<Vector*>(arena.take(sizeof(Vector) + blocks * sizeof(of[0])));
    made->blocks = blocks;
    if (from != nullptr) {
      std::memcpy(made->of, from->of, blocks * sizeof(of[0]));
    } else {
      std::memset(made->of, 0, blocks * sizeof(of[0]));
    }
    return made;
  }
};

inline std::uint32_t known_clock(const Vector* vector, Who who) {
  if (vector == nullptr) return 0;
  const Chunk* const chunk = vector->of[who >> 16];
  const std::uint32_t place = who & 0xffffu;
  return chunk == nullptr || place >= chunk->size ? 0 : chunk->clock[place];
}

inline bool covers(const Chunk* a, const Chunk* b) {  // a knows all of b
  for (std::uint32_t i = 0; i < b->size; ++i) {
    if (b->clock[i] > (i < a->size ? a->clock[i] : 0)) return false;
  }
  return true;
}

inline const Chunk* join(const Chunk* a, const Chunk* b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr || covers(b, a)) return b;
  if (covers(a, b)) return a;
  Chunk* const made = Chunk::make(std::max(a->size, b->size), a);
  for (std::uint32_t i = 0; i < b->size; ++i) made->clock[i] = std::max(made->clock[i], b->clock[i]);
  return made;
}

inline const Vector* join(const Vector* a, const Vector* b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr) return b;
  Vector* made = nullptr;
  for (std::uint32_t i = 0; i < a->blocks; ++i) {
    const Chunk* const both = join(a->of[i], b->of[i]);
    if (both == a->of[i]) continue;
    if (made == nullptr) made = Vector::make(a->blocks, a);
    made->of[i] = both;
  }
  return made == nullptr ? a : made;
}

inline const Vector* with(const Vector* vector, std::uint32_t blocks, Who who,
                          std::uint32_t clock) {
  if (known_clock(vector, who) >= clock) return vector;
  Vector* const made = Vector::make(blocks, vector);
  const std::uint32_t place = who & 0xffffu;
  const Chunk* const before = made->of[who >> 16];
  Chunk* const chunk = Chunk::make(std::max(place + 1, before == nullptr ? 0 : before->size), before);
  chunk->clock[place] = clock;
  made->of[who >> 16] = chunk;
  return made;
}

}  // namespace twin
