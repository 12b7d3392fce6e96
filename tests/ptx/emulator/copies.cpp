// Copies that come later: by threads (cp.async), by the copy engine, by other blocks (st.async).
#include "runtime.h"

namespace twin {

namespace {

Who own_copies() { return own() + machine.threads; }

void fly(Flight&& flight) { machine.flights.push_back(std::move(flight)); }

// A matrix as the simulated driver encodes it (rawnn/sim/tensormap.py).
struct Map {
  unsigned long long address, rows, columns, pitch;  // columns in elements, the pitch in bytes
  unsigned long long element, box_rows, box_columns;
  bool swizzled;
  static Map of(const void* map) {
    const auto* const raw = static_cast<const unsigned char*>(map);
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

Barrier& barrier_at(unsigned int address, bool asynchronous) {
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
  if ((asynchronous || &block != self->block) && !published) {
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

bool anything_flies() { return !machine.flights.empty() || !machine.late.empty(); }
void land_any() {
  const std::size_t which = machine.random() % (machine.flights.size() + machine.late.size());
  if (which < machine.flights.size()) {
    land(which);
  } else {
    land_late(which - machine.flights.size());
  }
}

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

namespace {

// What a copy needs of the thread that asks for it: the barrier, whose phase it belongs to.
std::pair<Who, std::uint32_t> asked(unsigned int barrier) {
  const Barrier& counts = barrier_at(barrier, true);
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

}  // namespace

void commit_copies() { ++self->copy_group; }

void load_bulk(unsigned int to, const void* from, int bytes, unsigned int barrier) {
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

static void tile_to(Block& block, unsigned int to, const void* from, int row, int column,
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

void load_tile(unsigned int to, const void* from, int row, int column,
               unsigned int barrier) {
  tile_to(*self->block, to, from, row, column, barrier);
}

void load_tile_to_blocks(unsigned int to, const void* from, int row, int column,
                         unsigned int barrier, unsigned int blocks) {
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

void store_tile(const void* to, int row, int column, unsigned int from) {
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
  open_store();
  ++self->store_group;
}

void send(unsigned int to, const void* value, unsigned int bytes, unsigned int barrier) {
  if (to >> 24 == 0 || barrier >> 24 != to >> 24) {
    fail("st.async wants both addresses of in_block(), for one block, at %p", self->here);
  }
  Barrier& counts = barrier_at(barrier, true);
  Who who = counts.who;
  if (&block_of(to) != self->block) {
    if (counts.who_of_others == 0) counts.who_of_others = hand_out(block_of(to));
    who = counts.who_of_others;
  }
  touch_shared(to, bytes, kWrite, who, coming(counts));
  const auto* const from = static_cast<const unsigned char*>(value);
  Block& block = block_of(to);
  Flight flight{&block, local(to), {}, {from, from + bytes}, {}, static_cast<int>(bytes), &block,
                barrier};
  flight.seen = join(self->seen, everything(*self));
  fly(std::move(flight));
}

}  // namespace twin
