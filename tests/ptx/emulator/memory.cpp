// Memory beside plain loads and stores: atomic and relaxed operations, fences, shared memory by its
// addresses, and where a block's own begins.
#include "runtime.h"

namespace twin {

// Atomic operations are relaxed: they order nothing but with fences.
std::uint32_t atomic(void* address, int kind, std::uint32_t value, std::uint32_t compare) {
  EMULATOR_HERE;
  // Who has seen what this thread's last fence released has seen the operation as well.
  const std::uint32_t fenced = known_clock(self->released, own());
  const std::uint32_t clock = fenced != 0 ? fenced : self->clock;
  const Block& block = *self->block;
  const auto* const pointer = static_cast<const unsigned char*>(address);
  if (pointer >= block.dynamic.begin && pointer < block.dynamic.begin + block.dynamic.bytes) {
    touch_shared(base_of_dynamic() + static_cast<unsigned int>(pointer - block.dynamic_memory), 4,
                 kWrite | kAtomic, own(), clock);
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
  changed(address);
  return before;
}

void land_late(std::size_t index) {
  const Late late = machine.late[index];
  machine.late[index] = machine.late.back();
  machine.late.pop_back();
  std::memcpy(late.to, late.data, late.bytes);
  machine.told[late.to] = late.told;
  changed(late.to);
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
    fail("an access to %zu bytes at a misaligned address, at %p", bytes, self->here);
  }
}

// What the store that was found says of all that was ahead of it.
void hear_of(const Told& told) {
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

std::vector<Look>::iterator look_at(const void* place) {
  return std::find_if(self->looked.begin(), self->looked.end(),
                      [&](const Look& look) { return look.place == place; });
}

bool is_as_it_was(const Look& look) {
  return std::memcmp(look.place, look.data, look.bytes) == 0;
}

// A thread that loads a place again polls: where nothing that it has looked at has changed, it goes on
// once something does.
void poll(const void* place, std::uint32_t bytes, const char* what) {
  auto found = look_at(place);
  if (found != self->looked.end() && is_as_it_was(*found)) {
    if (std::all_of(self->looked.begin(), self->looked.end(), is_as_it_was)) {
      machine.polling.push_back(self);
      pause(what);
    }
    for (Look& look : self->looked) std::memcpy(look.data, look.place, look.bytes);
    found = look_at(place);
  }
  if (found == self->looked.end()) {
    self->looked.push_back({});
    found = self->looked.end() - 1;
  }
  const auto told = machine.told.find(place);
  const bool has = told != machine.told.end();
  *found = {place, bytes, {}, has, has ? told->second : Told{}};
  std::memcpy(found->data, place, bytes);
}

void forget(const void* place) {
  const auto found = look_at(place);
  if (found != self->looked.end()) self->looked.erase(found);
}

}  // namespace

void changed(const void* place) {
  ++machine.progress;
  for (std::size_t i = machine.polling.size(); i-- > 0;) {
    Thread& thread = *machine.polling[i];
    const auto& looked = thread.looked;
    if (std::none_of(looked.begin(), looked.end(),
                     [&](const Look& look) { return look.place == place; })) {
      continue;
    }
    machine.polling[i] = machine.polling.back();
    machine.polling.pop_back();
    wake(thread);
  }
}

// A second look may find what a thread has not looked for yet; a few of them settle it.
bool poll_again() {
  constexpr int kPolls = 64;
  std::vector<Thread*> left;
  bool any = false;
  for (Thread* const thread : machine.polling) {
    if (thread->polled_at != machine.progress) thread->polls = 0;
    thread->polled_at = machine.progress;
    if (++thread->polls > kPolls) {
      left.push_back(thread);
      continue;
    }
    any = true;
    thread->ready = true;
    thread->block->ready.push_back(thread);
  }
  machine.polling.swap(left);
  return any;
}

void load_shared(void* to, unsigned int from, unsigned int bytes) {
  touch_shared(from, bytes, kRead, own(), self->clock);
  std::memcpy(to, shared_pointer(block_of(from), from, bytes), bytes);
}

void store_shared(unsigned int to, const void* from, unsigned int bytes) {
  touch_shared(to, bytes, kWrite, own(), self->clock);
  std::memcpy(shared_pointer(block_of(to), to, bytes), from, bytes);
}

// A relaxed load may find anything: it conflicts with nothing until found() says that it is what the
// thread waits for. An acquire takes what was released ahead of the last of the additions.
void load_global(void* to, const void* from, unsigned int bytes, Order order) {
  must_be_aligned(from, bytes);
  if (order == Order::kWeak) {
    touch_global(from, bytes, kRead, own(), self->clock);
    std::memcpy(to, from, bytes);
    return;
  }
  touch_global(from, bytes, order == Order::kAcquire ? kAtomic : kLook, own(), self->clock);
  land_own(from);
  poll(from, bytes, order == Order::kAcquire ? "a counter of the grid"
                                             : "numbers that carry marks");
  std::memcpy(to, from, bytes);
  const auto released = machine.atomics.find(from);
  if (released == machine.atomics.end()) return;
  if (order == Order::kAcquire) {
    self->known = join(self->known, released->second);
  } else {
    self->pending = join(self->pending, released->second);
  }
}

// A relaxed store may be seen later than what its thread does next; a thread sees its own at once.
void store_global(void* to, const void* from, unsigned int bytes, Order order) {
  must_be_aligned(to, bytes);
  if (order == Order::kWeak) {
    touch_global(to, bytes, kWrite, own(), self->clock);
    std::memcpy(to, from, bytes);
    return;
  }
  touch_global(to, bytes, kWrite | kMarked, own(), self->clock);
  land_own(to);
  forget(to);
  Late late{static_cast<unsigned char*>(to), {}, bytes, self,
            {own(), self->clock++, self->known, self->seen}};
  std::memcpy(late.data, from, bytes);
  machine.late.push_back(late);
}

// Relaxed, it carries what its thread's last fence released, and no more.
void add_global(unsigned int* to, unsigned int value, Order order) {
  must_be_aligned(to, sizeof *to);
  if (order == Order::kWeak) {  // at a scope that does not reach the other blocks
    touch_global(to, 4, kRead, own(), self->clock);
    touch_global(to, 4, kWrite, own(), self->clock);
    *to += value;
    return;
  }
  if (order == Order::kRelaxed) {
    atomic(to, 1, value, 0);
    return;
  }
  land_late_of(self->block);
  touch_global(to, 4, kWrite | kAtomic, own(), self->clock);
  const Vector*& place = machine.atomics[to];
  place = join(place, everything(*self));
  *to += value;
  changed(to);
}

// The load is one that later stores must not overtake.
void found(unsigned int bits) {
  const auto look = std::find_if(
      self->looked.begin(), self->looked.end(), [&](const Look& one) {
        return std::memcmp(one.data + one.bytes - sizeof bits, &bits, sizeof bits) == 0;
      });
  if (look == self->looked.end()) return;
  const Look one = *look;
  self->looked.erase(look);
  ++machine.progress;
  touch_global(one.place, one.bytes, kRead | kMarked, own(), self->clock);
  if (one.told) hear_of(one.by);
}

// Aligned as asked and no better: a kernel that needs more finds out here.
unsigned char* dynamic_shared(int alignment) {
  if (machine.dynamic_offset == 0) {
    machine.dynamic_offset =
        base_of_dynamic() + (alignment < 1024 ? static_cast<unsigned int>(alignment) : 0u);
    for (auto& block : machine.live) {
      block->dynamic.begin = block->dynamic_memory + (machine.dynamic_offset - base_of_dynamic());
    }
  }
  return self->block->dynamic.begin;
}

unsigned int shared_address(const void* pointer) {
  EMULATOR_HERE;
  const auto* const bytes = static_cast<const unsigned char*>(pointer);
  Block& block = *self->block;
  if (bytes >= machine.fixed && bytes < machine.fixed + machine.fixed_bytes) {
    return kFixedAddress + static_cast<unsigned int>(bytes - machine.fixed);
  }
  if (bytes < block.dynamic.begin || bytes > block.dynamic.begin + block.dynamic.bytes) {
    fail("shared_address() of something else, by %s at %p", describe(own()).c_str(), self->here);
  }
  return base_of_dynamic() + static_cast<unsigned int>(bytes - block.dynamic_memory);
}

unsigned int in_block(unsigned int address, unsigned int rank) {
  if (address >> 24 != 0 || rank >= self->block->cluster->blocks.size()) {
    fail("in_block(%#x, %u) in a cluster of %zu, at %p", address, rank,
         self->block->cluster->blocks.size(), self->here);
  }
  return address | (rank + 1) << 24;
}

// Each reading of a clock is the next number, so that all are in the order in which they were read.
unsigned long long next_reading() {
  static unsigned long long readings = 0;
  return ++readings;
}

void fence_proxy_async() { self->proxied = join(self->proxied, everything(*self)); }

void wait_for_kernels() { self->kernels_waited = true; }

}  // namespace twin

using twin::self;

extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
  *reinterpret_cast<unsigned int*>(handle) = value;
}

void __threadfence() {
  EMULATOR_HERE;
  twin::land_late_of(self->block);
  self->known = twin::join(self->known, self->pending);
  self->pending = nullptr;
  self->released = twin::everything(*self);
}
