// Memory beside loads, stores and copies: atomic operations, counters of the grid, fences, shared
// memory of other blocks, and where a block's own begins.
#include "runtime.h"

namespace twin {

// Atomic operations are relaxed: they order nothing but with fences.
std::uint32_t atomic(void* address, int kind, std::uint32_t value, std::uint32_t compare) {
  TWIN_HERE;
  // Who has seen what this thread's last fence released has seen the operation as well.
  const std::uint32_t fenced = known_clock(self->released, own());
  const std::uint32_t clock = fenced != 0 ? fenced : self->clock;
  const Block& block = *self->block;
  const auto* const pointer = static_cast<const unsigned char*>(address);
  if (pointer >= block.dynamic.begin && pointer < block.dynamic.begin + block.dynamic.bytes) {
    touch_shared(static_cast<unsigned int>(pointer - block.dynamic_memory), 4, kWrite | kAtomic,
                 own(), clock);
  } else {
    touch_global(address, 4, kWrite | kAtomic, own(), clock);
  }
  const Vector*& place = machine.atomics[address];
  self->pending = join(self->pending, place);
  place = join(place, self->released);
  std::uint32_t before;
  std::memcpy(&before, address, 4);
  std::uint32_t after = value;
  if (kind == 1) after = before + value;
  if (kind == 2) {
    after = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, before) +
                                                  __builtin_bit_cast(float, value));
  }
  if (kind == 3) after = before == compare ? value : before;
  std::memcpy(address, &after, 4);
  return before;
}

void land_late(std::size_t index) {
  const Late late = machine.late[index];
  machine.late[index] = machine.late.back();
  machine.late.pop_back();
  std::memcpy(late.to, late.data, late.bytes);
  machine.told[late.to] = late.told;
  const auto found = machine.looking.find(late.to);
  if (found == machine.looking.end()) return;
  for (const Looking& one : found->second) {
    if (one.thread->turn == one.turn) wake(*one.thread);
  }
  machine.looking.erase(found);
}

void land_late_of(const Block* block) {
  for (std::size_t i = machine.late.size(); i-- > 0;) {
    if (block == nullptr || machine.late[i].by->block == block) land_late(i);
  }
}

namespace {

// A thread sees its own stores to a place, and all see them in their order.
void land_own(const void* at) {
  for (std::size_t i = machine.late.size(); i-- > 0;) {
    if (machine.late[i].to == at && machine.late[i].by == self) land_late(i);
  }
}

void must_be_aligned(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    fail("a relaxed access to %zu bytes at a misaligned address, at %p", bytes, self->here);
  }
}

void store_late(void* to, const void* value, std::size_t bytes) {
  must_be_aligned(to, bytes);
  touch_global(to, bytes, kWrite | kMarked, own(), self->clock);
  land_own(to);
  Late late{static_cast<unsigned char*>(to), {}, bytes, self,
            {own(), self->clock++, self->known, seen_ahead(*self)}};
  std::memcpy(late.data, value, bytes);
  machine.late.push_back(late);
}

void load_late(void* value, const void* from, std::size_t bytes) {
  must_be_aligned(from, bytes);
  touch_global(from, bytes, kLook, own(), self->clock);
  land_own(from);
  std::memcpy(value, from, bytes);
  self->looked.push_back(from);
}

// What the store that was found says of all that was ahead of it.
void hear_of(const void* place) {
  const auto found = machine.told.find(place);
  if (found == machine.told.end()) return;
  const Told& told = found->second;
  self->events.emplace_back(told.who, told.clock);
  for (const Vector* const vector : {told.known, told.seen}) {
    constexpr std::size_t kHeard = 32;
    auto& heard = self->heard;
    if (vector == nullptr || std::find(heard.begin(), heard.end(), vector) != heard.end()) continue;
    if (heard.size() == kHeard) heard.erase(heard.begin());
    heard.push_back(vector);
    self->seen = join(self->seen, vector);
  }
}

void found_there(const void* from, std::size_t bytes, unsigned int lacking) {
  if ((lacking & 1u) != 0) return;
  touch_global(from, bytes, kRead | kMarked, own(), self->clock);
  hear_of(from);
}

}  // namespace

void check_counting() {
  for (std::size_t i = 0; i < machine.counting.size();) {
    const auto& [thread, what] = machine.counting[i];
    if (static_cast<int>(*what.first - what.second) >= 0) {
      wake(*thread);
      machine.counting[i] = machine.counting.back();
      machine.counting.pop_back();
    } else {
      ++i;
    }
  }
}

void load_shared(unsigned int* words, int count, unsigned int from) {
  TWIN_HERE;
  const unsigned int bytes = 4u * static_cast<unsigned int>(count);
  touch_shared(from, bytes, kRead, own(), self->clock);
  std::memcpy(words, shared_pointer(block_of(from), from, bytes), bytes);
}

void store_shared(unsigned int to, const unsigned int* words, int count) {
  TWIN_HERE;
  const unsigned int bytes = 4u * static_cast<unsigned int>(count);
  touch_shared(to, bytes, kWrite, own(), self->clock);
  std::memcpy(shared_pointer(block_of(to), to, bytes), words, bytes);
}

// Aligned as asked and no better: a kernel that needs more finds out here.
unsigned char* dynamic_shared(int alignment) {
  if (machine.dynamic_offset == 0) {
    machine.dynamic_offset =
        kDynamicAddress + 1024u + (alignment < 1024 ? static_cast<unsigned int>(alignment) : 0u);
    for (auto& block : machine.live) {
      block->dynamic.begin = block->dynamic_memory + machine.dynamic_offset;
    }
  }
  return self->block->dynamic.begin;
}

}  // namespace twin

using twin::self;

extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
  *reinterpret_cast<unsigned int*>(handle) = value;
}

void __threadfence() {
  TWIN_HERE;
  twin::land_late_of(self->block);
  self->known = twin::join(self->known, self->pending);
  self->pending = nullptr;
  self->released = twin::everything(*self);
}

namespace ptx {

using namespace twin;

unsigned int shared_address(const void* pointer) {
  TWIN_HERE;
  const auto* const bytes = static_cast<const unsigned char*>(pointer);
  Block& block = *self->block;
  if (bytes >= machine.fixed && bytes < machine.fixed + machine.fixed_bytes) {
    return kFixedAddress + static_cast<unsigned int>(bytes - machine.fixed);
  }
  const unsigned char* const begin = block.dynamic_memory;
  if (bytes < block.dynamic.begin || bytes > block.dynamic.begin + block.dynamic.bytes) {
    fail("shared_address() of something else, by %s at %p", describe(own()).c_str(), self->here);
  }
  return static_cast<unsigned int>(bytes - begin);
}

unsigned int in_block(unsigned int address, unsigned int rank) {
  TWIN_HERE;
  if (address >> 24 != 0 || rank >= self->block->cluster->blocks.size()) {
    fail("in_block(%#x, %u) in a cluster of %zu, at %p", address, rank,
         self->block->cluster->blocks.size(), self->here);
  }
  return address | (rank + 1) << 24;
}

float load_remote(unsigned int from) {
  TWIN_HERE;
  touch_shared(from, 4, kRead, own(), self->clock);
  float value;
  std::memcpy(&value, shared_pointer(block_of(from), from, 4), 4);
  return value;
}
void add_release(unsigned int* counter, unsigned int value) {
  TWIN_HERE;
  land_late_of(self->block);
  touch_global(counter, 4, kWrite | kAtomic, own(), self->clock);
  const Vector*& place = machine.atomics[counter];
  place = join(place, everything(*self));
  *counter += value;
  check_counting();
}

unsigned int load_acquire(const unsigned int* counter) {
  TWIN_HERE;
  touch_global(counter, 4, kAtomic, own(), self->clock);
  self->known = join(self->known, machine.atomics[counter]);
  return *counter;
}

void wait_for_count(const unsigned int* counter, unsigned int target, int) {
  TWIN_HERE;
  touch_global(counter, 4, kAtomic, own(), self->clock);
  while (static_cast<int>(*counter - target) < 0) {
    machine.counting.push_back({self, {counter, target}});
    pause("a counter of the grid");
  }
  self->known = join(self->known, machine.atomics[counter]);
}

void store_marked(float4* to, float4 v, unsigned int mark) {
  TWIN_HERE;
  v.w = __uint_as_float((__float_as_uint(v.w) & ~1u) | mark);
  store_late(to, &v, sizeof v);
}

float4 load_marked(const float4* from) {
  TWIN_HERE;
  float4 v;
  load_late(&v, from, sizeof v);
  return v;
}

void store_marked(uint2* to, uint2 v, unsigned int mark) {
  TWIN_HERE;
  v.y = (v.y & ~1u) | mark;
  store_late(to, &v, sizeof v);
}

uint2 load_marked(const uint2* from) {
  TWIN_HERE;
  uint2 v;
  load_late(&v, from, sizeof v);
  return v;
}

// A look that finds what it is for is a load that the next store must not overtake.
void look_for(unsigned int& lacking, const float4* from, const float4& v, unsigned int mark) {
  TWIN_HERE;
  const unsigned int found = __float_as_uint(v.w) ^ mark;
  found_there(from, sizeof v, found);
  lacking |= found;
}

void look_for(unsigned int& lacking, const uint2* from, const uint2& v, unsigned int mark) {
  TWIN_HERE;
  const unsigned int found = v.y ^ mark;
  found_there(from, sizeof v, found);
  lacking |= found;
}

// Until a store comes to one of the places that the thread has looked at.
void look_again(int&, int) {
  TWIN_HERE;
  for (const void* const place : self->looked) {
    machine.looking[place].push_back({self, self->turn + 1});
  }
  self->looked.clear();
  pause("numbers that carry marks");
}

// Each reading is the next number, so that all are in the order in which they were read.
unsigned long long cycles() {
  static unsigned long long readings = 0;
  return ++readings;
}

void fence_proxy_async() {
  TWIN_HERE;
  self->proxied = join(self->proxied, everything(*self));
}

void wait_for_kernels() {
  TWIN_HERE;
  self->kernels_waited = true;
}
void launch_dependents() {}

}  // namespace ptx
