// Copies that come later: by threads (cp.async), by the copy engine, by other blocks (st.async); the
// barriers in shared memory that count them, and each other's shared memory.
#include "runtime.h"

namespace twin {

namespace {

Who own() { return who_of(self->block->number, self->number); }
Who own_copies() { return own() + machine.threads; }

void advance(Barrier& barrier) {
  if (barrier.left != 0 || barrier.bytes != 0) return;
  barrier.known = join(barrier.known, barrier.gather.vector());
  barrier.proxied = join(barrier.proxied, barrier.gather.proxied);
  barrier.published = join(barrier.published, barrier.gather.published);
  ++barrier.phase;
  // The bytes that came in this phase are known to whoever waits for its end.
  barrier.known = with(barrier.known, machine.blocks, barrier.who, barrier.phase);
  barrier.gather = Gather{};
  barrier.left = barrier.arrivals;
  for (Thread* thread : barrier.waiting) wake(*thread);
  barrier.waiting.clear();
}

void fly(Flight&& flight) { machine.flights.push_back(std::move(flight)); }

// A matrix as the simulated driver encodes it (rawnn/device/sim/tensormap.py).
struct Map {
  unsigned long long address, rows, columns, pitch;  // columns in elements, the pitch in bytes
  unsigned long long element, box_rows, box_columns;
  bool swizzled;
  static Map of(const TensorMap& map) {
    const auto* const raw = reinterpret_cast<const unsigned char*>(&map);
    const auto number = [&]<typename V>(V, int at) {
      V value;
      std::memcpy(&value, raw + at, sizeof value);
      return value;
    };
    constexpr int kSizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    const unsigned long long wide = 0;
    const unsigned int word = 0;
    if (std::memcmp(raw, "a map", 6) != 0 || raw[6] != 2 || (raw[8] != 0 && raw[8] != 3)) {
      fail("no map of a matrix is given to a copy at %p", self->here);
    }
    return {number(wide, 10), number(wide, 26), number(wide, 18), number(wide, 58),
            static_cast<unsigned long long>(kSizes[raw[7]]), number(word, 94), number(word, 90),
            raw[8] == 3};
  }
};

// Calls piece(place in the tile, row, byte of the row, whether it exists) for chunks of 16 bytes.
template <typename Piece>
void walk(const Map& map, unsigned int tile, int row, int column, Piece piece) {
  if (map.swizzled ? tile % 1024 != 0 : tile % 128 != 0) {
    fail("a tile of the copy engine at the shared address %#x, by %p", tile, self->here);
  }
  const auto width = static_cast<int>(map.box_columns * map.element);
  for (int r = 0; r < static_cast<int>(map.box_rows); ++r) {
    for (int byte = 0; byte < width; byte += 16) {
      int place = r * width + byte;
      if (map.swizzled) {
        const int absolute = static_cast<int>(tile & 1023u) + place;
        place = place ^ ((absolute >> 7 & 7) << 4);
      }
      const long long at_row = row + r;
      const long long at_byte = static_cast<long long>(column) * static_cast<long long>(map.element) + byte;
      long long exist = static_cast<long long>(map.columns * map.element) - at_byte;
      if (at_row < 0 || at_row >= static_cast<long long>(map.rows) || at_byte < 0) exist = 0;
      piece(static_cast<unsigned int>(place), at_row, at_byte,
            static_cast<int>(std::max(0LL, std::min(16LL, exist))));
    }
  }
}

std::uint32_t coming(const Barrier& barrier) { return barrier.phase + 1; }

}  // namespace

Barrier& barrier_at(unsigned int address, bool remote, bool asynchronous) {
  Block& block = block_of(address);
  const auto found = block.barriers.find(local(address));
  if (found == block.barriers.end()) {
    fail("a barrier at the shared address %#x that nobody has initialised, by %s at %p",
         local(address), describe(own()).c_str(), self->here);
  }
  Barrier& barrier = found->second;
  const bool published = known_clock(self->published, barrier.init_by) >= barrier.init_at ||
                         known_clock(self->publishing, barrier.init_by) >= barrier.init_at;
  if (!knows(*self, barrier.init_by, barrier.init_at) && !published) {
    fail("a barrier at %#x is used by %s at %p and initialised by %s, without synchronisation",
         local(address), describe(own()).c_str(), self->here, describe(barrier.init_by).c_str());
  }
  if ((remote || asynchronous) && !published) {
    fail("a barrier at %#x counts copies at %p, and publish_barriers() was not called",
         local(address), self->here);
  }
  return barrier;
}

void land(std::size_t index) {
  Flight flight = std::move(machine.flights[index]);
  machine.flights[index] = std::move(machine.flights.back());
  machine.flights.pop_back();
  Block& block = *flight.to_block;
  if (!flight.data.empty()) {
    std::memcpy(shared_pointer(block, flight.to, static_cast<unsigned>(flight.data.size())),
                flight.data.data(), flight.data.size());
  }
  for (std::size_t i = 0; i < flight.rows.size(); ++i) {
    const auto& [from, exist] = flight.rows[i];
    unsigned char* const to = shared_pointer(block, flight.to + flight.places[i], 16);
    std::memset(to, 0, 16);
    if (exist != 0) std::memcpy(to, from, static_cast<std::size_t>(exist));
  }
  Barrier& barrier = flight.barrier_block->barriers[local(flight.barrier)];
  barrier.bytes -= flight.bytes;
  barrier.seen = join(barrier.seen, flight.seen);
  advance(barrier);
}

bool anything_flies() { return !machine.flights.empty(); }
void land_any() { land(machine.random() % machine.flights.size()); }

void flush_copies(Thread& thread, std::uint32_t up_to) {
  std::vector<Copy> due;
  while (!thread.copies.empty() && thread.copies.front().group <= up_to) {
    due.push_back(thread.copies.front());
    thread.copies.pop_front();
  }
  if (machine.how.seed > 1) std::shuffle(due.begin(), due.end(), machine.random);
  for (const Copy& copy : due) {
    unsigned char* const to =
        shared_pointer(*thread.block, copy.to, static_cast<unsigned>(copy.bytes));
    std::memset(to, 0, static_cast<std::size_t>(copy.bytes));
    std::memcpy(to, copy.from, static_cast<std::size_t>(copy.exist));
  }
}

void copy_async(unsigned int to, const void* from, int bytes, int exist) {
  TWIN_HERE;
  if (exist < 0 || exist > bytes) fail("cp.async of %d of %d bytes at %p", exist, bytes, self->here);
  if (reinterpret_cast<std::uintptr_t>(from) % static_cast<unsigned>(bytes) != 0) {
    fail("cp.async reads %d bytes at a misaligned address, at %p", bytes, self->here);
  }
  touch_shared(to, static_cast<unsigned>(bytes), kWrite, own_copies(), self->copy_group);
  if (exist > 0) {
    touch_global(from, static_cast<std::size_t>(exist), kRead, own_copies(), self->copy_group);
  }
  self->copies.push_back(
      {to, static_cast<const unsigned char*>(from), bytes, exist, self->copy_group});
  if (machine.eager && machine.random() % 2 == 0) flush_copies(*self, self->copy_group);
}

void wait_for_copies(int pending) {
  TWIN_HERE;
  if (pending < 0) {
    flush_copies(*self, self->copy_group);
    self->copied = self->copy_group++;
    return;
  }
  const std::uint32_t groups = self->copy_group - 1;  // that are closed
  const auto left = static_cast<std::uint32_t>(pending);
  if (groups <= left) return;
  flush_copies(*self, groups - left);
  self->copied = std::max(self->copied, groups - left);
}

void read_stores(Thread& thread, std::uint32_t up_to) {
  for (Store& store : thread.stores) {
    if (store.group > up_to || !store.taken.empty()) continue;
    for (const Store::Row& row : store.rows) {
      const unsigned char* const from =
          shared_pointer(*thread.block, row.from, static_cast<unsigned>(row.bytes));
      store.taken.insert(store.taken.end(), from, from + row.bytes);
    }
    store.taken.push_back(0);
  }
}

void write_stores(Thread& thread, std::uint32_t up_to) {
  read_stores(thread, up_to);
  while (!thread.stores.empty() && thread.stores.front().group <= up_to) {
    const Store& store = thread.stores.front();
    const unsigned char* from = store.taken.data();
    for (const Store::Row& row : store.rows) {
      std::memcpy(row.to, from, static_cast<std::size_t>(row.bytes));
      from += row.bytes;
    }
    thread.stores.pop_front();
  }
}

void wait_for_stores(int pending, bool read_only) {
  TWIN_HERE;
  const std::uint32_t groups = self->store_group - 1;
  const auto left = static_cast<std::uint32_t>(pending);
  if (self->reading == 0 || groups <= left) return;
  const std::uint32_t up_to = groups - left;
  if (read_only) {
    read_stores(*self, up_to);
  } else {
    write_stores(*self, up_to);
    self->known = with(self->known, machine.blocks, self->writing, up_to);
  }
  self->known = with(self->known, machine.blocks, self->reading, up_to);
}

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

namespace {

void arrive_at(unsigned int address, bool remote) {
  Barrier& barrier = barrier_at(address, remote, false);
  if (barrier.left == 0) fail("more arrivals than a barrier was told of, at %p", self->here);
  barrier.gather.add(*self);
  --barrier.left;
  advance(barrier);
}

void wait_at(unsigned int address, int parity) {
  Barrier& barrier = barrier_at(address, false, false);
  while ((barrier.phase & 1u) == static_cast<unsigned>(parity & 1)) {
    barrier.waiting.push_back(self);
    pause("a barrier in shared memory");
  }
  self->known = join(self->known, barrier.known);
  self->proxied = join(self->proxied, barrier.proxied);
  self->published = join(self->published, barrier.published);
  self->seen = join(self->seen, barrier.seen);
}

// What a copy needs of the thread that asks for it: the barrier, whose phase it belongs to.
std::pair<Who, std::uint32_t> asked(unsigned int barrier) {
  const Barrier& counts = barrier_at(barrier, barrier >> 24 != 0, true);
  return {counts.who, coming(counts)};
}

void open_store() {
  if (self->reading != 0) return;
  self->reading = hand_out(*self->block);
  self->writing = hand_out(*self->block);
}

Store& store_of_group() {
  open_store();
  if (self->stores.empty() || self->stores.back().group != self->store_group) {
    self->stores.push_back({self->store_group, {}, {}});
  }
  return self->stores.back();
}

void send_bytes(unsigned int to, const void* value, unsigned int bytes, unsigned int barrier) {
  if (to >> 24 == 0 || barrier >> 24 != to >> 24) {
    fail("st.async wants both addresses of in_block(), for one block, at %p", self->here);
  }
  const auto [who, clock] = asked(barrier);
  touch_shared(to, bytes, kWrite, who, clock);
  const auto* const from = static_cast<const unsigned char*>(value);
  Block& block = block_of(to);
  Flight flight{&block, local(to), {}, {from, from + bytes}, {}, static_cast<int>(bytes), &block,
                barrier};
  flight.seen = join(self->seen, everything(*self));
  fly(std::move(flight));
}

}  // namespace

}  // namespace twin

using twin::self;

extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
  *reinterpret_cast<unsigned int*>(handle) = value;
}

void __threadfence() {
  TWIN_HERE;
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

void commit_copies() {
  TWIN_HERE;
  ++self->copy_group;
}

void init_barrier(unsigned int address, int arrivals) {
  TWIN_HERE;
  if (address % 8 != 0) fail("a barrier at a misaligned address, at %p", self->here);
  touch_shared(address, 8, kWrite, own(), self->clock);
  Barrier& barrier = self->block->barriers[local(address)];
  barrier = Barrier{};
  barrier.arrivals = barrier.left = arrivals;
  barrier.init_by = own();
  barrier.init_at = self->clock;
  barrier.who = hand_out(*self->block);
}

void publish_barriers() {
  TWIN_HERE;
  const Vector* const all = everything(*self);
  self->publishing = join(self->publishing, all);
  self->published = join(self->published, all);
}

void arrive(unsigned int barrier) {
  TWIN_HERE;
  arrive_at(barrier, false);
}

void arrive_remote(unsigned int barrier) {
  TWIN_HERE;
  arrive_at(barrier, true);
}

void arrive_remote_having_read(unsigned int barrier) {
  TWIN_HERE;
  arrive_at(barrier, true);
}

void expect(unsigned int address, int bytes) {
  TWIN_HERE;
  barrier_at(address, false, false).bytes += bytes;
}

void arrive_expecting(unsigned int address, int bytes) {
  TWIN_HERE;
  barrier_at(address, false, false).bytes += bytes;
  arrive_at(address, false);
}

bool has_ended(unsigned int address, int parity) {
  TWIN_HERE;
  wait_at(address, parity);  // it may take as long as it likes
  return true;
}

void wait_for(unsigned int address, int parity) {
  TWIN_HERE;
  wait_at(address, parity);
}

void wait_for_remote(unsigned int address, int parity) {
  TWIN_HERE;
  wait_at(address, parity);
}

void load_bulk(unsigned int to, const void* from, int bytes, unsigned int barrier) {
  TWIN_HERE;
  if (bytes <= 0 || bytes % 16 != 0 || to % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    fail("a bulk copy of %d bytes at misaligned addresses, at %p", bytes, self->here);
  }
  const auto [who, clock] = asked(barrier);
  touch_global(from, static_cast<std::size_t>(bytes), kRead, who, clock);
  Flight flight{self->block, local(to), {}, {}, {}, bytes, self->block, barrier};
  for (int byte = 0; byte < bytes; byte += 16) {
    touch_shared(to + static_cast<unsigned>(byte), 16, kWrite | kProxy, who, clock);
    flight.rows.emplace_back(static_cast<const unsigned char*>(from) + byte, 16);
    flight.places.push_back(static_cast<unsigned int>(byte));
  }
  fly(std::move(flight));
}

static void tile_to(Block& block, unsigned int to, const TensorMap& from, int row, int column,
                    unsigned int barrier) {
  const Map map = Map::of(from);
  const auto [who, clock] = asked(barrier);
  const auto* const memory = reinterpret_cast<const unsigned char*>(map.address);
  const auto bytes = static_cast<int>(map.box_rows * map.box_columns * map.element);
  Flight flight{&block, local(to), {}, {}, {}, bytes, &block, barrier};
  const Who writes = who;
  const std::uint32_t at = clock;
  walk(map, local(to), row, column,
       [&](unsigned int place, long long at_row, long long at_byte, int exist) {
         const unsigned char* const piece =
             memory + at_row * static_cast<long long>(map.pitch) + at_byte;
         if (exist > 0) touch_global(piece, static_cast<std::size_t>(exist), kRead, writes, at);
         touch_shared(to + place, 16, kWrite | kProxy, writes, at);
         flight.rows.emplace_back(piece, exist);
         flight.places.push_back(place);
       });
  fly(std::move(flight));
}

void load_tile(unsigned int to, const TensorMap& from, int row, int column,
               unsigned int barrier) {
  TWIN_HERE;
  tile_to(*self->block, to, from, row, column, barrier);
}

void load_tile_to_blocks(unsigned int to, const TensorMap& from, int row, int column,
                         unsigned int barrier, unsigned int blocks) {
  TWIN_HERE;
  const auto& all = self->block->cluster->blocks;
  if (blocks == 0 || blocks >> all.size() != 0) {
    fail("a tile for the blocks %#x of a cluster of %zu, at %p", blocks, all.size(), self->here);
  }
  for (unsigned int rank = 0; rank < all.size(); ++rank) {
    if ((blocks >> rank & 1u) == 0) continue;
    const unsigned int there = in_block(to, rank);
    tile_to(block_of(there), there, from, row, column, in_block(barrier, rank));
  }
}

void store_bulk(void* to, unsigned int from, int bytes) {
  TWIN_HERE;
  if (bytes <= 0 || bytes % 16 != 0 || from % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(to) % 16 != 0) {
    fail("a bulk copy of %d bytes at misaligned addresses, at %p", bytes, self->here);
  }
  Store& store = store_of_group();
  for (int byte = 0; byte < bytes; byte += 16) {
    touch_shared(from + static_cast<unsigned>(byte), 16, kRead | kProxy, self->reading,
                 self->store_group);
  }
  touch_global(to, static_cast<std::size_t>(bytes), kWrite, self->writing, self->store_group);
  store.rows.push_back({from, static_cast<unsigned char*>(to), bytes});
}

void store_tile(const TensorMap& to, int row, int column, unsigned int from) {
  TWIN_HERE;
  const Map map = Map::of(to);
  auto* const memory = reinterpret_cast<unsigned char*>(map.address);
  Store& store = store_of_group();
  walk(map, local(from), row, column,
       [&](unsigned int place, long long at_row, long long at_byte, int exist) {
         touch_shared(from + place, 16, kRead | kProxy, self->reading, self->store_group);
         if (exist == 0) return;
         // Whole chunks are written: rows are padded to 16 bytes.
         unsigned char* const piece =
             memory + at_row * static_cast<long long>(map.pitch) + at_byte;
         touch_global(piece, static_cast<std::size_t>(exist), kWrite, self->writing,
                      self->store_group);
         store.rows.push_back({from + place, piece, exist});
       });
}

void commit_stores() {
  TWIN_HERE;
  open_store();
  ++self->store_group;
}

unsigned int in_block(unsigned int address, unsigned int rank) {
  TWIN_HERE;
  if (address >> 24 != 0 || rank >= self->block->cluster->blocks.size()) {
    fail("in_block(%#x, %u) in a cluster of %zu, at %p", address, rank,
         self->block->cluster->blocks.size(), self->here);
  }
  return address | (rank + 1) << 24;
}

template <typename V>
static V load_from(unsigned int from) {
  touch_shared(from, sizeof(V), kRead, own(), self->clock);
  V value;
  std::memcpy(&value, shared_pointer(block_of(from), from, sizeof value), sizeof value);
  return value;
}

template <typename V>
static void store_to(unsigned int to, V value) {
  touch_shared(to, sizeof(V), kWrite, own(), self->clock);
  std::memcpy(shared_pointer(block_of(to), to, sizeof value), &value, sizeof value);
}

float load_remote(unsigned int from) {
  TWIN_HERE;
  return load_from<float>(from);
}
float4 load_remote4(unsigned int from) {
  TWIN_HERE;
  return load_from<float4>(from);
}
void store_remote(unsigned int to, float value) {
  TWIN_HERE;
  store_to(to, value);
}
void store_remote4(unsigned int to, float4 value) {
  TWIN_HERE;
  store_to(to, value);
}
void send(unsigned int to, float value, unsigned int barrier) {
  TWIN_HERE;
  send_bytes(to, &value, 4, barrier);
}
void send4(unsigned int to, float4 value, unsigned int barrier) {
  TWIN_HERE;
  send_bytes(to, &value, 16, barrier);
}

void add_release(unsigned int* counter, unsigned int value) {
  TWIN_HERE;
  touch_global(counter, 4, kWrite | kAtomic, own(), self->clock);
  const Vector*& place = machine.atomics[counter];
  place = join(place, everything(*self));
  *counter += value;
  check_counting();
}

void store_release(unsigned int* to, unsigned int value) {
  TWIN_HERE;
  touch_global(to, 4, kWrite | kAtomic, own(), self->clock);
  const Vector*& place = machine.atomics[to];
  place = join(place, everything(*self));
  *to = value;
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

namespace twin {

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
