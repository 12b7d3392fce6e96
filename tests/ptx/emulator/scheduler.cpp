// Threads as fibers, and blocks and clusters of them.
//
// One fiber runs until it waits. Which one goes on, and when bytes on their way come, follows from the
// seed: 0 runs threads in order and 1 in reverse, with everything that is asynchronous as late as
// the rules allow; others run them at random, every second one with bytes that come at any time.
// Blocks that need not run at once run one after another, in an order of the seed.
#include <link.h>
#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>

#include "runtime.h"

namespace twin {

namespace {

void* scheduler_pointer = nullptr;

// Saves what a call must preserve, and goes on where `to` was saved.
extern "C" void emulator_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, %function
emulator_switch:
  sub sp, sp, #176
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #176
  ret
)");
#else
#error "the CPU emulator's fibers are written for x86-64 and aarch64"
#endif

void to_scheduler() { emulator_switch(&self->stack_pointer, scheduler_pointer); }

void thread_main() {
  machine.thunk(machine.kernel, machine.arguments);
  end_thread(*self);
  to_scheduler();
  std::abort();
}

class Stacks {
 public:
  char* get(std::size_t i) {
    while (i >= stacks_.size()) {
      void* const made = mmap(nullptr, kStack, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (made == MAP_FAILED) return nullptr;
      mprotect(made, 4096, PROT_NONE);  // running over the end is not to go unseen
      stacks_.push_back(static_cast<char*>(made));
    }
    return stacks_[i];
  }
  void keep_few() {
    for (; stacks_.size() > 2048; stacks_.pop_back()) munmap(stacks_.back(), kStack);
  }

 private:
  std::vector<char*> stacks_;
};
Stacks stacks;

void prepare(Thread& thread) {
  auto* top = reinterpret_cast<void**>(thread.stack + kStack - 64);
#if defined(__x86_64__)
  *--top = nullptr;  // where thread_main would return to: the stack is aligned as after a call
  *--top = reinterpret_cast<void*>(&thread_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
#else
  top -= 22;
  std::memset(top, 0, 22 * sizeof(void*));
  top[11] = reinterpret_cast<void*>(&thread_main);
#endif
  thread.stack_pointer = top;
}

void load(Block& block) {
  if (machine.loaded == &block) return;
  if (machine.loaded != nullptr) {
    std::memcpy(machine.loaded->fixed_copy.data(), machine.fixed, machine.fixed_bytes);
  }
  std::memcpy(machine.fixed, block.fixed_copy.data(), machine.fixed_bytes);
  machine.loaded = &block;
}

std::size_t pick(std::size_t count) {
  return machine.how.seed == 0 ? 0 : machine.how.seed == 1 ? count - 1 : machine.random() % count;
}

// Runs the live blocks until none of their threads can go on.
void run_live() {
  for (;;) {
    std::vector<Block*> able;
    int running = 0;
    for (auto& block : machine.live) {
      if (!block->ready.empty()) able.push_back(block.get());
      running += block->running;
    }
    if (able.empty()) {
      if (running == 0) return;
      if (anything_flies()) {
        land_any();
        continue;
      }
      if (poll_again()) continue;
      std::string waits;
      for (auto& block : machine.live) {
        for (const Thread& thread : block->threads) {
          if (thread.done || waits.size() > 300) continue;
          waits += "; " + describe(who_of(block->number, thread.number)) + " waits for " +
                   (thread.waits_for == nullptr ? "nothing" : thread.waits_for);
        }
      }
      machine.failure = "no thread can go on" + waits;
      return;
    }
    Block& block = *able[pick(able.size())];
    load(block);
    while (!block.ready.empty()) {
      // In order: from the front; the lists are short where that costs.
      const std::size_t i = pick(block.ready.size());
      Thread* const thread = block.ready[i];
      if (machine.how.seed == 0) {
        block.ready.erase(block.ready.begin());
      } else {
        block.ready[i] = block.ready.back();
        block.ready.pop_back();
      }
      self = thread;
      emulator_switch(&scheduler_pointer, thread->stack_pointer);
      self = nullptr;
      if (!machine.failure.empty()) return;
      if (machine.eager) {
        if (machine.random() % 16 == 0 && anything_flies()) land_any();
        if (!machine.failure.empty()) return;
        if (machine.random() % 64 == 0) break;  // another block may go on
      }
    }
  }
}

std::unique_ptr<Block> make_block(unsigned int number, std::size_t first_stack) {
  auto block = std::make_unique<Block>();
  const unsigned int* const grid = machine.how.grid;
  block->number = number;
  block->index = {number % grid[0], number / grid[0] % grid[1], number / grid[0] / grid[1]};
  const unsigned int count = machine.threads;
  block->threads.resize(count);
  block->warps.resize((count + 31) / 32);
  block->groups.resize((count + 127) / 128);
  block->running = static_cast<int>(count);
  block->next_place = 2 * count;
  // Never better aligned than it was asked to be: dynamic_shared().
  const std::size_t room = machine.how.shared + 4096;
  block->allocation = std::make_unique<unsigned char[]>(room + 1024);
  std::memset(block->allocation.get(), 0xff, room + 1024);
  const auto address = reinterpret_cast<std::uintptr_t>(block->allocation.get());
  block->dynamic_memory = block->allocation.get() + (1024 - address % 1024);
  block->dynamic.bytes = machine.how.shared;
  block->dynamic.begin = block->dynamic_memory;
  if (machine.dynamic_offset != 0) block->dynamic.begin += machine.dynamic_offset - base_of_dynamic();
  block->dynamic.name = "dynamic shared memory of block " + std::to_string(number);
  block->dynamic.pages.resize(machine.how.shared / 4 / Space::kPage + 2);
  block->fixed.name = "shared memory of block " + std::to_string(number);
  block->fixed.begin = machine.fixed;
  block->fixed.bytes = machine.fixed_bytes;
  block->fixed.pages.resize(machine.fixed_bytes / 4 / Space::kPage + 2);
  block->fixed_copy.assign(machine.fixed_bytes, 0xff);
  const unsigned int* const size = machine.how.block;
  for (unsigned int i = 0; i < count; ++i) {
    Thread& thread = block->threads[i];
    thread.index = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
    thread.block = block.get();
    thread.number = i;
    thread.lane = static_cast<int>(i % 32);
    thread.warp = &block->warps[i / 32];
    thread.warp->exists |= 1u << thread.lane;
    thread.warp->lane[thread.lane] = &thread;
    thread.kernels_waited = machine.how.programmatic == 0;
    thread.stack = stacks.get(first_stack + i);
    if (thread.stack == nullptr) {
      machine.failure = "no memory for the threads' stacks";
      return block;
    }
    prepare(thread);
    block->ready.push_back(&thread);
  }
  return block;
}

struct Image {
  const void* kernel;
  bool found;
};

int find_image(dl_phdr_info* info, std::size_t, void* data) {
  auto* const image = static_cast<Image*>(data);
  const auto address = reinterpret_cast<std::uintptr_t>(image->kernel);
  std::uintptr_t begin = ~std::uintptr_t{0}, end = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    begin = std::min(begin, info->dlpi_addr + part.p_vaddr);
    end = std::max(end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
  }
  if (address < begin || address >= end) return 0;
  machine.image = reinterpret_cast<unsigned char*>(begin);
  machine.image_end = reinterpret_cast<unsigned char*>(end);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_W) == 0) continue;
    std::uintptr_t fixed = info->dlpi_addr + part.p_vaddr + part.p_filesz;
    const std::uintptr_t last = info->dlpi_addr + part.p_vaddr + part.p_memsz;
    fixed = (fixed + 15) & ~std::uintptr_t{15};
    machine.fixed = reinterpret_cast<unsigned char*>(fixed);
    machine.fixed_bytes = last > fixed ? last - fixed : 0;
  }
  image->found = true;
  return 1;
}

}  // namespace

void fail(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (machine.failure.empty()) machine.failure = text;
  // What runs is left where it stands: a kernel owns nothing that would have to be given back.
  if (self == nullptr || self->stack_pointer == nullptr) std::abort();
  to_scheduler();
  std::abort();
}

void pause(const char* what) {
  self->waits_for = what;
  self->ready = false;
  to_scheduler();
  self->waits_for = nullptr;
}

void wake(Thread& thread) {
  ++machine.progress;
  if (thread.ready || thread.done) return;
  thread.ready = true;
  thread.block->ready.push_back(&thread);
}

const char* launch(const Launch& how, Thunk thunk, void* kernel, void** arguments) {
  static std::string result;
  machine.how = how;
  machine.thunk = thunk;
  machine.kernel = kernel;
  machine.arguments = arguments;
  machine.threads = how.block[0] * how.block[1] * how.block[2];
  machine.blocks = how.grid[0] * how.grid[1] * how.grid[2];
  machine.random.seed(how.seed);
  machine.eager = how.seed > 1 && how.seed % 2 == 1;
  Image image{kernel, false};
  dl_iterate_phdr(find_image, &image);
  const unsigned int size = how.cluster == 0 ? 1 : how.cluster;
  if (!image.found) return "the kernel lies in no library";
  if (machine.blocks > 0xffff || machine.threads > 1024 || machine.threads == 0) {
    return "more than 65535 blocks or 1024 threads";
  }
  if (how.grid[0] % size != 0) return "the grid is no multiple of the cluster";
  machine.global.resize(how.regions);
  for (unsigned int i = 0; i < how.regions; ++i) {
    Space& space = machine.global[i];
    space.begin = static_cast<unsigned char*>(const_cast<void*>(how.region[i].begin));
    space.bytes = how.region[i].bytes;
    space.name = how.region[i].name;
    space.early = how.region[i].early != 0;
    space.pages.resize(space.bytes / 4 / Space::kPage + 2);
  }
  // Clusters in an order of the seed; all at once in a cooperative launch.
  std::vector<unsigned int> order(machine.blocks / size);
  for (unsigned int i = 0; i < order.size(); ++i) order[i] = i;
  if (how.seed == 1) std::reverse(order.begin(), order.end());
  if (how.seed > 1) std::shuffle(order.begin(), order.end(), machine.random);
  const std::size_t at_once = how.cooperative != 0 ? order.size() : 1;
  for (std::size_t next = 0; next < order.size() && machine.failure.empty(); next += at_once) {
    machine.loaded = nullptr;
    machine.live.clear();
    machine.clusters.clear();
    for (std::size_t i = next; i < next + at_once && machine.failure.empty(); ++i) {
      auto cluster = std::make_unique<Cluster>();
      for (unsigned int rank = 0; rank < size && machine.failure.empty(); ++rank) {
        auto block = make_block(order[i] * size + rank, machine.live.size() * machine.threads);
        block->rank = rank;
        block->cluster = cluster.get();
        cluster->blocks.push_back(block.get());
        cluster->expected += static_cast<int>(machine.threads);
        machine.live.push_back(std::move(block));
      }
      machine.clusters.push_back(std::move(cluster));
    }
    if (machine.failure.empty()) run_live();
    land_late_of(nullptr);
  }
  self = nullptr;
  result = machine.failure;
  // A library stays loaded: what one launch took is of no use to it.
  machine.~Machine();
  new (&machine) Machine;
  arena.clear();
  stacks.keep_few();
  return result.empty() ? nullptr : result.c_str();
}

void end_thread(Thread& thread) {
  if (!thread.stores.empty()) {
    fail("%s ends while its bulk stores are under way, at %p",
         describe(who_of(thread.block->number, thread.number)).c_str(), thread.here);
  }
  thread.done = true;
  Block& block = *thread.block;
  --block.running;
  if (block.running > 0 && block.at_barrier == block.running) release_block(block);
  Cluster& cluster = *block.cluster;
  --cluster.expected;
  if (cluster.expected > 0 && cluster.arrived == cluster.expected) release_cluster(cluster);
  if (block.running == 0) end_block(block);
}

}  // namespace twin

namespace twin {

dim3 thread_index() { return self->index; }
dim3 block_index() { return self->block->index; }
dim3 block_dim() { return {machine.how.block[0], machine.how.block[1], machine.how.block[2]}; }
dim3 grid_dim() { return {machine.how.grid[0], machine.how.grid[1], machine.how.grid[2]}; }

}  // namespace twin
