// Barriers at which threads wait: of a block, of a cluster, and those in shared memory that count
// arrivals and the bytes of copies.
#include "runtime.h"

namespace twin {

void release_block(Block& block) {
  const Vector* const known = block.gather.vector();
  for (Thread& thread : block.threads) {
    if (thread.done) continue;
    learn(thread, known, block.gather);
    thread.events.clear();
    wake(thread);
  }
  block.gather = Gather{};
  block.at_barrier = 0;
  block.barrier_result = block.barrier_or;
  block.barrier_or = false;
  ++block.barrier_phase;
}

void release_cluster(Cluster& cluster) {
  cluster.known = join(cluster.known, cluster.gather.vector());
  cluster.proxied = join(cluster.proxied, cluster.gather.proxied);
  cluster.published = join(cluster.published, cluster.gather.published);
  cluster.gather = Gather{};
  cluster.arrived = 0;
  ++cluster.phase;
  for (Thread* thread : cluster.waiting) wake(*thread);
  cluster.waiting.clear();
}

void sync_block() {
  EMULATOR_HERE;
  Block& block = *self->block;
  block.gather.add(*self);
  if (++block.at_barrier == block.running) {
    release_block(block);
    return;
  }
  const std::uint32_t phase = block.barrier_phase;
  while (block.barrier_phase == phase) pause("__syncthreads()");
}

bool sync_block_or(bool predicate) {
  EMULATOR_HERE;
  self->block->barrier_or = self->block->barrier_or || predicate;
  sync_block();
  return self->block->barrier_result;
}

void advance(Barrier& barrier) {
  if (barrier.left != 0 || barrier.bytes != 0) return;
  for (Gather* gather : {&barrier.gather, &barrier.others}) {
    const Vector*& known = gather == &barrier.gather ? barrier.known : barrier.known_of_others;
    known = join(known, gather->vector());
    barrier.proxied = join(barrier.proxied, gather->proxied);
    barrier.published = join(barrier.published, gather->published);
    *gather = Gather{};
  }
  ++barrier.phase;
  // The bytes that came in this phase are known to whoever waits for its end.
  barrier.known = with(barrier.known, machine.blocks, barrier.who, barrier.phase);
  if (barrier.who_of_others != 0) {
    barrier.known_of_others =
        with(barrier.known_of_others, machine.blocks, barrier.who_of_others, barrier.phase);
  }
  barrier.left = barrier.arrivals;
  for (Thread* thread : barrier.waiting) wake(*thread);
  barrier.waiting.clear();
}

void init_barrier(unsigned int address, int arrivals) {
  if (address % 8 != 0) fail("a barrier at a misaligned address, at %p", self->here);
  if (arrivals < 1 || arrivals >= 1 << 20) {
    fail("a barrier of %d arrivals, at %p", arrivals, self->here);
  }
  touch_shared(address, 8, kWrite, own(), self->clock);
  Barrier& barrier = self->block->barriers[local(address)];
  barrier = Barrier{};
  barrier.arrivals = barrier.left = arrivals;
  barrier.init_by = own();
  barrier.init_at = self->clock;
  barrier.who = hand_out(*self->block);
}

void fence_barrier_init() {
  const Vector* const all = everything(*self);
  self->publishing = join(self->publishing, all);
  self->published = join(self->published, all);
}

// A release whose scope does not cover the block that waits there shows it nothing that was written;
// but what the thread has loaded, and copies that it has waited for, are over.
void arrive(unsigned int address, Order order, Scope scope) {
  Barrier& barrier = barrier_at(address, false);
  if (barrier.left == 0) fail("more arrivals than a barrier expects, at %p", self->here);
  if (order == Order::kRelease) {
    if (&block_of(address) == self->block) {
      barrier.gather.add(*self);
    } else if (scope != Scope::kBlock) {
      barrier.others.add(*self);
    } else {
      barrier.finished = join(barrier.finished, everything(*self));
    }
  }
  --barrier.left;
  advance(barrier);
}

void expect(unsigned int address, int bytes) {
  if (bytes < 0 || bytes >= 1 << 20) fail("a barrier expects %d bytes, at %p", bytes, self->here);
  barrier_at(address, false).bytes += bytes;
}

// It may take as long as it likes, and say no until the phase has ended. Bytes that copies of tiles
// bring are seen by whoever acquires; what other blocks store (st.async), and what their arrivals
// release, is seen at the cluster's scope alone.
bool try_wait(unsigned int address, int parity, Order order, Scope scope) {
  Barrier& barrier = barrier_at(address, false);
  if (&block_of(address) != self->block) fail("a wait at another block's barrier, at %p", self->here);
  while ((barrier.phase & 1u) == static_cast<unsigned>(parity & 1)) {
    barrier.waiting.push_back(self);
    pause("a barrier in shared memory");
    if (machine.random() % 4 == 0) return false;
  }
  self->finished = join(self->finished, barrier.finished);
  if (order == Order::kRelaxed) return true;
  self->known = join(self->known, barrier.known);
  if (scope != Scope::kBlock) self->known = join(self->known, barrier.known_of_others);
  self->proxied = join(self->proxied, barrier.proxied);
  self->published = join(self->published, barrier.published);
  self->seen = join(self->seen, barrier.seen);
  return true;
}

void arrive_at_cluster(Order order) {
  Cluster& cluster = *self->block->cluster;
  if (self->cluster_arrived) fail("a second arrival at the cluster's barrier at %p", self->here);
  self->cluster_arrived = true;
  self->waits_for = nullptr;
  if (order == Order::kRelaxed) {
    cluster.gather.published = join(cluster.gather.published, self->publishing);
  } else {
    cluster.gather.add(*self);
  }
  if (++cluster.arrived == cluster.expected) release_cluster(cluster);
}

void wait_for_cluster() {
  Cluster& cluster = *self->block->cluster;
  if (!self->cluster_arrived) {
    fail("a wait at the cluster's barrier without an arrival, at %p", self->here);
  }
  const std::uint32_t phase = self->cluster_phase;
  while (cluster.phase == phase) {
    cluster.waiting.push_back(self);
    pause("the cluster's barrier");
  }
  self->cluster_phase = cluster.phase;
  self->cluster_arrived = false;
  self->known = join(self->known, cluster.known);
  self->proxied = join(self->proxied, cluster.proxied);
  self->published = join(self->published, cluster.published);
}

}  // namespace twin
