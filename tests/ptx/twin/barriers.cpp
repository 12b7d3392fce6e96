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
  TWIN_HERE;
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
  TWIN_HERE;
  self->block->barrier_or = self->block->barrier_or || predicate;
  sync_block();
  return self->block->barrier_result;
}

void sync_some(int number, int count) {
  TWIN_HERE;
  Some& some = self->block->some[number];
  some.waiting.push_back(self);
  some.gather.add(*self);
  if (static_cast<int>(some.waiting.size()) == count) {
    const Vector* const known = some.gather.vector();
    for (Thread* thread : some.waiting) {
      learn(*thread, known, some.gather);
      thread->events.clear();
      wake(*thread);
    }
    some.gather = Gather{};
    some.waiting.clear();
    ++some.phase;
    return;
  }
  const std::uint32_t phase = some.phase;
  while (some.phase == phase) pause("a barrier of some threads");
}

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

}  // namespace

}  // namespace twin

namespace ptx {

using namespace twin;

unsigned int cluster_rank() { return self->block->rank; }

static void arrive_at_cluster(bool relaxed) {
  Cluster& cluster = *self->block->cluster;
  if (self->cluster_arrived) fail("a second arrival at the cluster's barrier at %p", self->here);
  self->cluster_arrived = true;
  self->waits_for = nullptr;
  if (relaxed) {
    cluster.gather.published = join(cluster.gather.published, self->publishing);
  } else {
    cluster.gather.add(*self);
  }
  if (++cluster.arrived == cluster.expected) release_cluster(cluster);
}
void arrive_at_cluster() {
  TWIN_HERE;
  arrive_at_cluster(false);
}
void arrive_at_cluster_relaxed() {
  TWIN_HERE;
  arrive_at_cluster(true);
}
void wait_for_cluster() {
  TWIN_HERE;
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

}  // namespace ptx
