// What the parts of the CPU emulator's library share.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "clocks.h"
#include "emulator.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace twin {

enum class Number { kTf32, kBf16, kF16, kE4m3, kE5m2 };
unsigned int encode(Number format, float value);
float decode(Number format, unsigned int bits);
float stored(double value);

// Qualifiers of an instruction: what it orders, and among whom.
enum class Order { kWeak, kRelaxed, kAcquire, kRelease };
enum class Scope { kBlock, kCluster, kGrid };

// The clocks of a warp's lanes, and of their copies: what they know of each other beyond `known`.
struct Overlay {
  std::uint32_t clock[2][32];
};

struct Block;
struct Thread;

// Lanes that wait for each other in a collective operation.
struct Meeting {
  unsigned int mask = 0;
  unsigned int arrived = 0;
  const char* operation = nullptr;
  void* gift[32] = {};  // what each lane brought: memory of its own
};

struct Warp {
  unsigned int exists = 0;
  Thread* lane[32] = {};
  std::vector<Meeting> meetings;
};

struct Copy {  // cp.async
  unsigned int to;
  const unsigned char* from;
  int bytes, exist;
  std::uint32_t group;
};

struct Store {  // a group's part: rows of bytes from shared to global memory
  std::uint32_t group;
  struct Row {
    unsigned int from;
    unsigned char* to;
    int bytes;
  };
  std::vector<Row> rows;
  std::vector<unsigned char> taken;  // once shared memory has been read
};

struct Product {  // wgmma of one warpgroup
  int columns;
  Number a_kind, b_kind;
  bool wide_a, wide_b;
  unsigned long long a, b;
  bool add;
  bool rows;  // a lies in registers
  std::uint32_t group;
  unsigned int asked = 0;  // by so many threads
  std::vector<float*> d[128] = {};  // of each thread
  const unsigned int* words[128][4] = {};  // of a
};

struct Warpgroup {
  Who who = 0;
  std::uint32_t first_product = 0;  // of those that are left, since the kernel began
  std::deque<Product> products;
  std::vector<Thread*> waiting;
};

// What is over ahead of a relaxed store: all that its thread has done and knows, or knew to be over.
struct Told {
  Who who;
  std::uint32_t clock;
  const Vector* known;
  const Vector* seen;
};

// What a thread found at a place by a relaxed load or an acquire, until it is known to be what the
// thread waits for.
struct Look {
  const void* place;
  std::uint32_t bytes;
  unsigned char data[16];
  bool told;
  Told by;
};

struct Thread {
  dim3 index{};
  Block* block = nullptr;
  Warp* warp = nullptr;
  unsigned int number = 0;  // in the block
  int lane = 0;
  const void* here = nullptr;  // where in the kernel it is

  std::uint32_t clock = 1;
  std::uint32_t copied = 0;           // groups of its copies that it has waited for
  const Overlay* overlay = nullptr;
  const Overlay* executed = nullptr;  // what lanes have done before a shuffle, if not published
  const Vector* known = nullptr;
  const Vector* proxied = nullptr;    // what asynchronous paths to shared memory may rely on
  const Vector* published = nullptr;  // barriers whose initialisation is known to all
  const Vector* publishing = nullptr;  // the same, by this thread's own fence
  const Vector* released = nullptr;   // at its last fence of global memory
  const Vector* pending = nullptr;    // seen by relaxed reads, waiting for a fence
  const Vector* seen = nullptr;       // over, but not published: loads ahead of what was sent
  std::vector<const Vector*> heard;   // the last that became part of it
  std::vector<std::pair<Who, std::uint32_t>> events;  // part of it since the last barrier
  const Vector* finished = nullptr;   // loads and copies that are over, by arrivals at barriers
  std::vector<Look> looked;           // what it may be waiting for
  std::uint64_t polled_at = 0;        // the machine's progress when it last polled in vain
  int polls = 0;                      // since then
  bool kernels_waited = true;

  std::deque<Copy> copies;
  std::uint32_t copy_group = 1;
  std::deque<Store> stores;
  std::uint32_t store_group = 1;
  bool open_stores = false;
  Who reading = 0, writing = 0;
  bool products_fenced = false;
  std::uint32_t product_group = 1;
  std::uint32_t products_asked = 0;
  bool cluster_arrived = false;
  std::uint32_t cluster_phase = 0;

  bool done = false;
  bool ready = true;
  const char* waits_for = nullptr;
  void* stack_pointer = nullptr;
  char* stack = nullptr;
};

// Collects what threads have done and know, for those that wait for it.
class Gather {
 public:
  void add(Thread& thread);
  void add(const Vector* vector) { known_ = join(known_, vector); }
  const Vector* vector();  // of all that was added
  const Vector* proxied = nullptr;
  const Vector* published = nullptr;
  const Vector* pending = nullptr;
  const Vector* seen = nullptr;
  const Vector* finished = nullptr;

 private:
  struct Own {
    Who who;
    std::uint32_t clock, copied;
  };
  const Vector* known_ = nullptr;
  std::vector<Own> own_;
  std::vector<std::pair<Who, std::uint32_t>> events_;  // that belong to `seen`
  std::vector<std::pair<Who, const Overlay*>> overlays_;  // of the warp that begins there
};
void learn(Thread& thread, const Vector* vector, const Gather& other);

struct Barrier {  // in shared memory
  int arrivals = 0;
  int left = 0;
  long long bytes = 0;
  std::uint32_t phase = 0;
  Who init_by = 0;
  std::uint32_t init_at = 0;
  Who who = 0;  // of the copies that count here
  Who who_of_others = 0;  // of the stores of other blocks that count here (st.async)
  Gather gather;  // of arrivals that release to this block
  Gather others;  // of those that release to the cluster, by other blocks
  const Vector* known = nullptr;
  const Vector* known_of_others = nullptr;
  const Vector* proxied = nullptr;
  const Vector* published = nullptr;
  const Vector* seen = nullptr;
  const Vector* finished = nullptr;
  std::vector<Thread*> waiting;
};

struct Access {
  Who who;
  std::uint32_t clock;
  const void* here;
  std::uint8_t mask;  // bytes of the word
  std::uint8_t kind;
};
enum Kind : std::uint8_t { kRead = 0, kWrite = 1, kAtomic = 2, kProxy = 4, kMarked = 8 };
constexpr int kLook = kAtomic | kMarked;  // which may find anything

constexpr std::uint32_t kUnread = ~0u;

struct Cell {
  std::uint32_t count = 0;
  std::uint32_t room = 0;  // kUnread: no list
  Access* list = nullptr;
};

// Memory that kernels may touch, with what happened to each of its words.
struct Space {
  unsigned char* begin = nullptr;
  std::size_t bytes = 0;
  std::string name;
  bool early = true;
  std::vector<Cell*> pages;
  static constexpr std::size_t kPage = 256;  // words
  Cell& cell(std::size_t word);
};

struct Cluster {
  std::vector<Block*> blocks;
  int expected = 0;
  int arrived = 0;
  std::uint32_t phase = 0;
  Gather gather;
  const Vector* known = nullptr;
  const Vector* proxied = nullptr;
  const Vector* published = nullptr;
  std::vector<Thread*> waiting;
};

struct Block {
  dim3 index{};
  unsigned int number = 0;
  unsigned int rank = 0;  // in its cluster
  Cluster* cluster = nullptr;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> groups;
  std::vector<Thread*> ready;
  int running = 0;
  int at_barrier = 0;
  std::uint32_t barrier_phase = 0;
  bool barrier_or = false, barrier_result = false;
  Gather gather;
  std::uint32_t next_place = 0;
  std::unique_ptr<unsigned char[]> allocation;
  unsigned char* dynamic_memory = nullptr;  // of the shared address base_of_dynamic()
  Space dynamic;   // dynamic shared memory
  Space fixed;     // declared shared memory: the kernels' .bss
  std::vector<unsigned char> fixed_copy;  // while another block runs
  std::unordered_map<unsigned int, Barrier> barriers;
  bool ended = false;
};

// Bytes on their way to shared memory, counted at a barrier when they come.
struct Flight {
  Block* to_block;
  unsigned int to;
  std::vector<std::pair<const unsigned char*, int>> rows;  // null: zeros
  std::vector<unsigned char> data;  // instead, if any
  std::vector<unsigned int> places;  // of the rows, from `to`
  int bytes;
  Block* barrier_block;
  unsigned int barrier;
  const Vector* seen = nullptr;
};

// A relaxed store that the rest of the GPU may not see yet.
struct Late {
  unsigned char* to;
  unsigned char data[16];
  std::size_t bytes;
  Thread* by;
  Told told;
};

struct Machine {
  Launch how{};
  Thunk thunk = nullptr;
  void* kernel = nullptr;
  void** arguments = nullptr;
  unsigned int blocks = 0;
  unsigned int threads = 0;  // a block
  std::vector<std::unique_ptr<Block>> live;
  std::vector<std::unique_ptr<Cluster>> clusters;
  std::vector<Space> global;
  unsigned char* image = nullptr;  // of the kernels' library
  unsigned char* image_end = nullptr;
  unsigned char* fixed = nullptr;  // its .bss
  std::size_t fixed_bytes = 0;
  Block* loaded = nullptr;  // whose copy is in it
  unsigned int dynamic_offset = 0;  // of dynamic shared memory, once a thread has asked for it
  std::vector<Flight> flights;
  std::vector<Late> late;
  std::unordered_map<const void*, Told> told;  // of the store that left what lies there
  std::map<const void*, const Vector*> atomics;
  std::vector<Thread*> polling;
  std::uint64_t progress = 0;
  std::mt19937 random;
  bool eager = false;
  std::string failure;
};
extern Machine machine;
extern Thread* self;

constexpr std::size_t kStack = 128 * 1024;  // of a fiber
constexpr unsigned int kFixedAddress = 0x100000;  // of declared shared memory
// Dynamic shared memory ends where that of a multiprocessor does (228 KiB), so that every bit of an
// address counts.

inline void mark(const void* address) { self->here = address; }
#define EMULATOR_HERE twin::mark(__builtin_return_address(0))

inline unsigned int base_of_dynamic() {
  constexpr unsigned int kAll = 228 * 1024, kReserved = 1024;
  return std::max(kReserved, (kAll - std::min(kAll, machine.how.shared)) / 1024 * 1024);
}

inline Who own() { return who_of(self->block->number, self->number); }

// Blocks the thread that runs until someone makes it ready again.
void pause(const char* what);
void wake(Thread& thread);
void flush_copies(Thread& thread, std::uint32_t up_to);
void read_stores(Thread& thread, std::uint32_t up_to);
void write_stores(Thread& thread, std::uint32_t up_to);
void land(std::size_t flight);
bool anything_flies();
void land_any();
void land_late(std::size_t store);
void land_late_of(const Block* block);  // all of a block's; of nullptr all
void end_thread(Thread& thread);
void end_block(Block& block);
bool poll_again();  // threads that poll, where nothing else is left; whether there are any
void changed(const void* place);  // wakes who polls it
void release_block(Block& block);      // from its barrier
void release_cluster(Cluster& cluster);  // likewise
void advance(Barrier& barrier);          // to its next phase, if this one is over

bool knows(const Thread& thread, Who who, std::uint32_t clock);
bool saw_executed(const Thread& thread, Who who, std::uint32_t clock);
Who hand_out(Block& block);
const Vector* everything(Thread& thread);

// A shared address: the block it lies in, and the offset there.
Block& block_of(unsigned int address);
inline unsigned int local(unsigned int address) { return address & 0xffffffu; }
unsigned char* shared_pointer(Block& block, unsigned int address, unsigned int bytes);
void touch_shared(unsigned int address, unsigned int bytes, int kind, Who who,
                  std::uint32_t clock);
void touch_global(const void* pointer, std::size_t bytes, int kind, Who who, std::uint32_t clock);
Barrier& barrier_at(unsigned int address, bool asynchronous);

// Instructions (ptx.cpp calls them). Addresses are those of shared memory, pointers those of global.
void load_shared(void* to, unsigned int from, unsigned int bytes);
void store_shared(unsigned int to, const void* from, unsigned int bytes);
void load_global(void* to, const void* from, unsigned int bytes, Order order);
void store_global(void* to, const void* from, unsigned int bytes, Order order);
void add_global(unsigned int* to, unsigned int value, Order order);
void found(unsigned int bits);  // a thread took what a load brought for what it waits for
unsigned int in_block(unsigned int address, unsigned int rank);
unsigned long long next_reading();
void fence_proxy_async();
void fence_barrier_init();
void wait_for_kernels();

void load_matrices(unsigned int* words, unsigned int row, bool transposed, int many);
unsigned int transpose_matrix(unsigned int word);
void multiply(Number a_kind, Number b_kind, float* c, const unsigned int* a, const unsigned int* b);
void multiply_f16(unsigned int* c, const unsigned int* a, const unsigned int* b);

void multiply_async(Product&& product, std::vector<float*>&& d, const unsigned int* const* a);
void fence_products();
void commit_products();
void wait_for_products(int pending);

void copy_async(unsigned int to, const void* from, int bytes, int exist);
void commit_copies();
void wait_for_copies(int pending);
void load_bulk(unsigned int to, const void* from, int bytes, unsigned int barrier);
void load_tile(unsigned int to, const void* map, int row, int column, unsigned int barrier);
void load_tile_to_blocks(unsigned int to, const void* map, int row, int column,
                         unsigned int barrier, unsigned int blocks);
void store_tile(const void* map, int row, int column, unsigned int from);
void commit_stores();
void wait_for_stores(int pending, bool read_only);
void send(unsigned int to, const void* value, unsigned int bytes, unsigned int barrier);

void init_barrier(unsigned int address, int arrivals);
void arrive(unsigned int address, Order order, Scope scope);
void expect(unsigned int address, int bytes);
bool try_wait(unsigned int address, int parity, Order order, Scope scope);
void arrive_at_cluster(Order order);
void wait_for_cluster();

std::string describe(Who who);

}  // namespace twin
