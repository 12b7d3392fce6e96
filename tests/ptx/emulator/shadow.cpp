// Every load and store of a kernel: inside memory it may touch, aligned, and ordered with all other
// accesses to the same bytes of which one writes (a happens-before check).
#include <cstdarg>
#include <cstdio>

#include "runtime.h"

namespace twin {

Arena arena;
Machine machine;
Thread* self = nullptr;

Cell& Space::cell(std::size_t word) {
  Cell*& page = pages[word / kPage];
  if (page == nullptr) {
    page = static_cast<Cell*>(arena.take(kPage * sizeof(Cell)));
    std::memset(static_cast<void*>(page), 0, kPage * sizeof(Cell));
  }
  return page[word % kPage];
}

bool knows(const Thread& thread, Who who, std::uint32_t clock) {
  const unsigned int place = who & 0xffffu;
  if (who >> 16 == thread.block->number && place < 2 * machine.threads) {
    const bool copies = place >= machine.threads;
    const unsigned int number = copies ? place - machine.threads : place;
    if (number == thread.number) return !copies || thread.copied >= clock;
    if (number / 32 == thread.number / 32 && thread.overlay != nullptr &&
        thread.overlay->clock[copies][number % 32] >= clock) {
      return true;
    }
  }
  return known_clock(thread.known, who) >= clock;
}

// Whether a lane of the same warp had done it ahead of a shuffle or a product of the warp. That orders
// its loads before later stores, as a warp issues both in order, but shows nobody its stores. What
// was sent to another block (st.async) says as much of the loads ahead of it.
bool saw_executed(const Thread& thread, Who who, std::uint32_t clock) {
  const unsigned int place = who & 0xffffu;
  return thread.executed != nullptr && who >> 16 == thread.block->number &&
         place < machine.threads && place / 32 == thread.number / 32 &&
         thread.executed->clock[0][place % 32] >= clock;
}

namespace {

const char* word_for(int kind) {
  return kind & kMarked ? kind & kWrite ? "stored with a mark" : "found with a mark"
         : kind & kAtomic ? "changed atomically" : kind & kWrite ? "written" : "read";
}

// Whether an arrival at a barrier that released nothing shows that it is over: a load, or a copy, which
// a later store of any path cannot overtake.
bool is_over(const Thread& viewer, const Access& before, int kind) {
  return (kind & kWrite) && (!(before.kind & kWrite) || (before.kind & kProxy)) &&
         known_clock(viewer.finished, before.who) >= before.clock;
}

// Whether what the thread has been told since (by bytes that were sent, or marks) came behind it.
bool told_of(const Thread& viewer, const Access& before) {
  if (known_clock(viewer.seen, before.who) >= before.clock) return true;
  for (const auto& [who, clock] : viewer.events) {
    if (who == before.who && clock >= before.clock) return true;
  }
  return false;
}

// A copy engine sees what threads wrote only where a fence of theirs stands between.
bool ordered(const Thread& viewer, const Access& before, int kind) {
  if (!knows(viewer, before.who, before.clock)) {
    if (is_over(viewer, before, kind)) return true;
    return (before.kind == kRead || (before.kind & kMarked)) && (kind & kProxy) == 0 &&
           (saw_executed(viewer, before.who, before.clock) || told_of(viewer, before));
  }
  const bool crosses = (kind & kProxy) && !(before.kind & kProxy) && (before.kind & kWrite);
  return !crosses || known_clock(viewer.proxied, before.who) >= before.clock;
}

void check_word(Space& space, std::size_t word, std::uint8_t mask, int kind, Who who,
                std::uint32_t clock) {
  Cell& cell = space.cell(word);
  if (cell.room == kUnread) {
    if (kind & kWrite) return;
    fail("%s + %zu: read by %s at %p, though nobody_reads() it", space.name.c_str(), 4 * word,
         describe(who).c_str(), self->here);
  }
  std::uint32_t kept = 0;
  for (std::uint32_t i = 0; i < cell.count; ++i) {
    const Access& before = cell.list[i];
    bool drop = false;
    if (before.mask & mask) {
      const bool conflict =
          ((kind | before.kind) & kWrite) && !((kind & kAtomic) && (before.kind & kAtomic)) &&
          !((kind & kMarked) && (before.kind & kMarked) && !(kind & kWrite));
      const bool is_ordered = ordered(*self, before, kind);
      if (conflict && !is_ordered) {
        const bool fence = knows(*self, before.who, before.clock);
        fail("%s + %zu: %s by %s at %p, and %s by %s at %p, %s", space.name.c_str(), 4 * word,
             word_for(before.kind), describe(before.who).c_str(), before.here, word_for(kind),
             describe(who).c_str(), self->here,
             fence ? "without a proxy fence between" : "without synchronisation");
      }
      drop = (before.mask & ~mask) == 0 && ((kind & kWrite) || !(before.kind & kWrite)) &&
             (is_ordered || (before.who == who && before.clock == clock));
      // A path of its own remembers what threads wrote, for other paths.
      drop = drop && (kind & kProxy) == (before.kind & kProxy);
      drop = drop || (is_ordered && conflict && (before.mask & ~mask) == 0);
    }
    if (!drop) cell.list[kept++] = before;
  }
  cell.count = kept;
  if (cell.count == cell.room) {
    constexpr std::uint32_t kMost = 24;  // accesses remembered of a word
    if (cell.room == kMost) {
      // The reads of a word that many threads share: any of them may go, a write must not.
      for (std::uint32_t tries = 0; tries < 8; ++tries) {
        const std::uint32_t victim = machine.random() % cell.count;
        if (!(cell.list[victim].kind & kWrite)) {
          cell.list[victim] = cell.list[--cell.count];
          break;
        }
      }
      if (cell.count == kMost) --cell.count;
    } else {
      const std::uint32_t room = cell.room == 0 ? 2 : 3 * cell.room > kMost ? kMost : 3 * cell.room;
      auto* const list = static_cast<Access*>(arena.take(room * sizeof(Access)));
      if (cell.count != 0) std::memcpy(list, cell.list, cell.count * sizeof(Access));
      cell.list = list;
      cell.room = room;
    }
  }
  cell.list[cell.count++] = {who, clock, self->here, mask, static_cast<std::uint8_t>(kind)};
}

void check(Space& space, std::size_t offset, std::size_t bytes, int kind, Who who,
           std::uint32_t clock) {
  if (kind == kLook) return;
  const std::size_t end = offset + bytes;
  for (std::size_t word = offset / 4; 4 * word < end; ++word) {
    unsigned int mask = 15u;
    if (4 * word < offset) mask &= 15u << (offset - 4 * word);
    if (4 * word + 4 > end) mask &= 15u >> (4 * word + 4 - end);
    Cell& cell = space.cell(word);
    if (cell.count != 0) {  // the same again
      const Access& last = cell.list[cell.count - 1];
      if (last.who == who && last.clock == clock && (mask & ~last.mask) == 0 &&
          (last.kind == kind || (last.kind == kWrite && kind == kRead))) {
        continue;
      }
    }
    check_word(space, word, static_cast<std::uint8_t>(mask), kind, who, clock);
  }
}

bool inside(const Space& space, const unsigned char* pointer) {
  return pointer >= space.begin && pointer < space.begin + space.bytes;
}

void must_fit(const Space& space, std::size_t offset, std::size_t bytes, int kind) {
  if (offset + bytes > space.bytes) {
    fail("%s + %zu: %zu bytes %s by %s at %p, of which it has %zu", space.name.c_str(), offset,
         bytes, word_for(kind), describe(who_of(self->block->number, self->number)).c_str(),
         self->here, space.bytes - std::min(space.bytes, offset));
  }
}

// A plain access of the thread that runs.
void plain(const void* address, std::size_t bytes, int kind, const void* here) {
  Thread* const thread = self;
  if (thread == nullptr) return;
  const auto* const pointer = static_cast<const unsigned char*>(address);
  const auto* const stack = reinterpret_cast<const unsigned char*>(thread->stack);
  if (pointer >= stack && pointer < stack + kStack) return;
  thread->here = here;
  const Who who = who_of(thread->block->number, thread->number);
  Block& block = *thread->block;
  if (inside(block.dynamic, pointer)) {
    const auto offset = static_cast<std::size_t>(pointer - block.dynamic.begin);
    must_fit(block.dynamic, offset, bytes, kind);
    check(block.dynamic, offset, bytes, kind, who, thread->clock);
  } else if (pointer >= machine.fixed && pointer < machine.fixed + machine.fixed_bytes) {
    check(block.fixed, static_cast<std::size_t>(pointer - machine.fixed), bytes, kind, who,
          thread->clock);
  } else if (pointer >= block.dynamic_memory &&
             pointer < block.dynamic.begin + block.dynamic.bytes + 1024) {
    fail("%s %+td: %zu bytes %s by %s at %p, outside its %zu bytes", block.dynamic.name.c_str(),
         pointer - block.dynamic.begin, bytes, word_for(kind), describe(who).c_str(), here,
         block.dynamic.bytes);
  } else if (pointer >= machine.image && pointer < machine.image_end) {
    if (kind & kWrite) fail("a constant is written by %s at %p", describe(who).c_str(), here);
  } else {
    touch_global(address, bytes, kind, who, thread->clock);
  }
}

}  // namespace

void touch_global(const void* address, std::size_t bytes, int kind, Who who, std::uint32_t clock) {
  const auto* const pointer = static_cast<const unsigned char*>(address);
  for (Space& space : machine.global) {
    if (!inside(space, pointer)) continue;
    const auto offset = static_cast<std::size_t>(pointer - space.begin);
    must_fit(space, offset, bytes, kind);
    if (!self->kernels_waited && !space.early) {
      fail("%s + %zu: %s by %s at %p ahead of wait_for_kernels()", space.name.c_str(), offset,
           word_for(kind), describe(who).c_str(), self->here);
    }
    check(space, offset, bytes, kind & ~kProxy, who, clock);
    return;
  }
  // What lies close behind or ahead of an operand says which one was meant.
  const Space* near = nullptr;
  std::ptrdiff_t distance = 1 << 16;
  for (const Space& space : machine.global) {
    const std::ptrdiff_t off = pointer < space.begin ? space.begin - pointer
                                                     : pointer - (space.begin + space.bytes);
    if (off < distance) {
      distance = off;
      near = &space;
    }
  }
  if (near != nullptr) {
    fail("%s %+td: %zu bytes %s by %s at %p, outside its %zu bytes", near->name.c_str(),
         pointer - near->begin, bytes, word_for(kind), describe(who).c_str(), self->here,
         near->bytes);
  }
  fail("%zu bytes %s by %s at %p, in no operand", bytes, word_for(kind), describe(who).c_str(),
       self->here);
}

void nobody_reads(const void* object, std::size_t bytes) {
  EMULATOR_HERE;
  const auto* const pointer = static_cast<const unsigned char*>(object);
  Block& block = *self->block;
  const bool declared = pointer >= machine.fixed && pointer < machine.fixed + machine.fixed_bytes;
  if (!declared && !inside(block.dynamic, pointer)) {
    fail("nobody_reads() of something that is not in shared memory, at %p", self->here);
  }
  Space& space = declared ? block.fixed : block.dynamic;
  const auto offset =
      static_cast<std::size_t>(pointer - (declared ? machine.fixed : block.dynamic.begin));
  for (std::size_t i = 0; i < bytes; i += 4) {
    Cell& cell = space.cell((offset + i) / 4);
    cell.count = 0;
    cell.room = kUnread;
  }
}

Block& block_of(unsigned int address) {
  const unsigned int rank = address >> 24;
  if (rank == 0) return *self->block;
  Cluster& cluster = *self->block->cluster;
  if (rank - 1 >= cluster.blocks.size()) fail("the cluster has no block %u", rank - 1);
  Block& block = *cluster.blocks[rank - 1];
  if (block.ended) {
    fail("shared memory of block %u of the cluster, which has ended, is touched by %s at %p",
         rank - 1, describe(who_of(self->block->number, self->number)).c_str(), self->here);
  }
  return block;
}

static unsigned int address_of_dynamic(const Block& block) {
  return base_of_dynamic() + static_cast<unsigned int>(block.dynamic.begin - block.dynamic_memory);
}

unsigned char* shared_pointer(Block& block, unsigned int address, unsigned int bytes) {
  const unsigned int offset = local(address);
  if (offset >= kFixedAddress && offset + bytes <= kFixedAddress + machine.fixed_bytes) {
    unsigned char* const begin =
        machine.loaded == &block ? machine.fixed : block.fixed_copy.data();
    return begin + (offset - kFixedAddress);
  }
  const unsigned int dynamic = address_of_dynamic(block);
  if (offset >= dynamic && offset + bytes <= dynamic + block.dynamic.bytes) {
    return block.dynamic.begin + (offset - dynamic);
  }
  fail("%u bytes at the shared address %#x, by %s at %p: dynamic shared memory is %#x to %#zx",
       bytes, offset, describe(who_of(self->block->number, self->number)).c_str(), self->here,
       dynamic, dynamic + block.dynamic.bytes);
}

void touch_shared(unsigned int address, unsigned int bytes, int kind, Who who,
                  std::uint32_t clock) {
  Block& block = block_of(address);
  shared_pointer(block, address, bytes);
  const unsigned int offset = local(address);
  if (bytes <= 16 && (offset & (bytes - 1)) != 0) {
    fail("a misaligned access to %u bytes of shared memory at %#x by %s at %p", bytes, offset,
         describe(who).c_str(), self->here);
  }
  if (offset >= kFixedAddress) {
    check(block.fixed, offset - kFixedAddress, bytes, kind, who, clock);
  } else {
    check(block.dynamic, offset - address_of_dynamic(block), bytes, kind, who, clock);
  }
}

// The end of a block: nothing of other blocks may still be at its shared memory.
void end_block(Block& block) {
  Gather all;
  for (Thread& thread : block.threads) all.add(thread);
  const Vector* const known = all.vector();
  for (Space* space : {&block.dynamic, &block.fixed}) {
    for (Cell* page : space->pages) {
      for (std::size_t i = 0; page != nullptr && i < Space::kPage; ++i) {
        for (std::uint32_t j = 0; j < page[i].count; ++j) {
          const Access& access = page[i].list[j];
          if (known_clock(known, access.who) < access.clock) {
            fail("%s is %s by %s at %p while its block ends", space->name.c_str(),
                 word_for(access.kind), describe(access.who).c_str(), access.here);
          }
        }
      }
    }
  }
  for (const Flight& flight : machine.flights) {
    if (flight.to_block == &block) fail("a block ends while bytes are on their way to it");
  }
  block.ended = true;
}

std::string describe(Who who) {
  char text[160];
  const unsigned int number = who >> 16;
  const unsigned int place = who & 0xffffu;
  const dim3 grid{machine.how.grid[0], machine.how.grid[1], machine.how.grid[2]};
  const unsigned int x = number % grid.x;
  const unsigned int y = number / grid.x % grid.y;
  const unsigned int z = number / grid.x / grid.y;
  const char* const what = place < machine.threads         ? "thread"
                           : place < 2 * machine.threads ? "the asynchronous copies of thread"
                                                           : "the copy engine or wgmma,";
  std::snprintf(text, sizeof text, "%s %u of block (%u, %u, %u)", what,
                place < 2 * machine.threads ? place % machine.threads : place, x, y, z);
  return text;
}

}  // namespace twin

#define EMULATOR_HOOK(bytes)                                                            \
  void __tsan_read##bytes(void* a) { twin::plain(a, bytes, twin::kRead, __builtin_return_address(0)); } \
  void __tsan_write##bytes(void* a) { twin::plain(a, bytes, twin::kWrite, __builtin_return_address(0)); } \
  void __tsan_volatile_read##bytes(void* a) { twin::plain(a, bytes, twin::kRead, __builtin_return_address(0)); } \
  void __tsan_volatile_write##bytes(void* a) { twin::plain(a, bytes, twin::kWrite, __builtin_return_address(0)); } \
  void __tsan_unaligned_read##bytes(void* a) { twin::plain(a, bytes, twin::kRead, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##bytes(void* a) { twin::plain(a, bytes, twin::kWrite, __builtin_return_address(0)); }

extern "C" {
EMULATOR_HOOK(1)
EMULATOR_HOOK(2)
EMULATOR_HOOK(4)
EMULATOR_HOOK(8)
EMULATOR_HOOK(16)
void __tsan_read_range(void* a, unsigned long n) {
  twin::plain(a, n, twin::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* a, unsigned long n) {
  twin::plain(a, n, twin::kWrite, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
