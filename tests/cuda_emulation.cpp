// What `cuda_emulation.h` declares: fibers that take turns, barriers, and launches.
#undef _FORTIFY_SOURCE  // would forbid jumps to another stack
#include "cuda_emulation.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <deque>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

dim3 threadIdx, blockIdx, blockDim, gridDim;
Barriers* barriers = nullptr;
unsigned cluster_blocks = 1;
Barrier* clusters = nullptr;

// A fiber for each thread of a block (or of several): it runs until it has to wait for others, then the next one does.
// They take turns forwards and backwards, so that what reads before it waited for the writer finds nothing there; one
// whose barrier is not open yet is passed over. `swapcontext` asks the system at every turn, these jumps do not.
struct Fiber {
  dim3 thread, block;
  Barriers* barriers;
  bool begun = false, done = false;
  const Barrier* awaited = nullptr;
  unsigned round = 0;  // of what is awaited, when it began to wait
  jmp_buf at = {};
  Fiber(dim3 thread_, dim3 block_, Barriers* barriers_) : thread(thread_), block(block_), barriers(barriers_) {}
  bool waits() const { return done || (awaited && awaited->round == round); }
};
static Fiber* running = nullptr;
static jmp_buf scheduler;
static Kernel body;
static void* arguments_of;
void let_others() {
  if (!_setjmp(running->at)) _longjmp(scheduler, 1);
}
static void live() {
  for (;; let_others()) body(arguments_of), running->done = true;
}
__attribute__((noinline)) static void take_turn(void* stack, size_t bytes) {
  if (_setjmp(scheduler)) return;
  if (running->begun) _longjmp(running->at, 1);
  running->begun = true;
  ucontext_t first;
  getcontext(&first);
  first.uc_stack = {stack, 0, bytes};
  makecontext(&first, live, 0);
  setcontext(&first);
}
static void run(std::vector<Fiber>& fibers, Kernel kernel, void* arguments) {
  constexpr size_t stack = 256 << 10;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* stacks = (char*)mmap(nullptr, fibers.size() * stack, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (stacks == MAP_FAILED) std::abort();
  body = kernel, arguments_of = arguments;
  bool stuck = false;
  size_t left = fibers.size();
  for (bool forwards = true; left && !stuck; forwards = !forwards) {
    stuck = true;
    for (size_t n = 0; n < fibers.size(); ++n) {
      const size_t f = forwards ? n : fibers.size() - 1 - n;
      running = &fibers[f];
      if (running->waits()) continue;
      stuck = false;
      threadIdx = running->thread, blockIdx = running->block, barriers = running->barriers;
      take_turn(stacks + f * stack, stack);
      left -= running->done;
    }
  }
  munmap(stacks, fibers.size() * stack);
  if (stuck) throw std::runtime_error("threads wait at barriers that others do not come to");
}

void Barrier::wait() {
  if (++here == expected) {
    here = 0, ++round;
    return;
  }
  running->awaited = this, running->round = round;
  let_others();
  running->awaited = nullptr;
}
struct BlockBarriers : Barriers {
  std::vector<Barrier> of_warps, of_groups;
  explicit BlockBarriers(unsigned threads) : Barriers{{threads}, nullptr, nullptr} {
    for (unsigned t = 0; t < threads; t += 32) of_warps.push_back({std::min(32u, threads - t)});
    for (unsigned t = 0; t < threads; t += 128) of_groups.push_back({std::min(128u, threads - t)});
    warps = of_warps.data(), groups = of_groups.data();
  }
};

// A kernel that writes beyond the dynamic shared memory that its launch asks for ends in an exception.
struct SharedFence {
  static constexpr size_t wide = 16 << 10;
  size_t bytes;
  unsigned blocks;
  size_t end() const { return std::min(bytes + wide, sizeof shared_of[0]); }
  SharedFence(size_t asked, unsigned blocks_) : bytes(asked), blocks(std::min(blocks_, 8u)) {
    for (unsigned b = 0; b < blocks; ++b)
      for (size_t i = bytes; i < end(); ++i) ((unsigned char*)shared_of[b])[i] = 0xa5;
  }
  void check() const {
    for (unsigned b = 0; b < blocks; ++b)
      for (size_t i = bytes; i < end(); ++i)
        if (((unsigned char*)shared_of[b])[i] != 0xa5) throw std::runtime_error("a kernel wrote beyond its shared memory");
  }
};

static std::set<int> pools_that_keep;
int cudaMemPoolSetAttribute(int pool, int, void*) { return pools_that_keep.insert(pool), cudaSuccess; }
bool keeps_memory() { return pools_that_keep.count(device_in_use()); }
static std::map<std::pair<int, const void*>, size_t> raised;  // by device and kernel
void set_shared_memory(const void* kernel, size_t bytes) { raised[{device_in_use(), kernel}] = bytes; }
void check_shared_memory(const void* kernel, size_t bytes) {
  const auto found = raised.find({device_in_use(), kernel});
  if (bytes > (found == raised.end() ? 48 << 10 : found->second)) throw std::runtime_error("too much shared memory asked for");
}

struct Blocks {
  Kernel kernel;
  void* arguments;
};
void emulate_blocks(dim3 grid, dim3 block, size_t dynamic, Kernel kernel, void* arguments) {
  const SharedFence fence(dynamic, 1);
  const unsigned threads = block.x * block.y * block.z;
  if (threads > unsigned(most_threads())) throw std::runtime_error("too many resources requested for launch");
  BlockBarriers shared(threads);
  blockDim = block, gridDim = grid;
  std::vector<Fiber> team;
  for (unsigned t = 0; t < threads; ++t)
    team.push_back({dim3(t % block.x, t / block.x % block.y, t / block.x / block.y), dim3(0, 0, 0), &shared});
  const auto in_turn = [](void* all) {
    for (unsigned b = 0; b < gridDim.x; ++b) {
      running->block = blockIdx = dim3(b, 0, 0);
      ((Blocks*)all)->kernel(((Blocks*)all)->arguments);
      __syncthreads();
    }
  };
  Blocks all{kernel, arguments};
  run(team, in_turn, &all);
  fence.check();
}

void emulate_together(const cudaLaunchConfig_t* config, Kernel kernel, void* arguments) {
  const SharedFence fence(config->dynamicSmemBytes, config->gridDim.x);
  std::deque<BlockBarriers> shared;
  blockDim = config->blockDim, gridDim = config->gridDim;
  cluster_blocks = config->attrs->id == cudaLaunchAttributeClusterDimension ? config->attrs->val.clusterDim.x : gridDim.x;
  std::vector<Barrier> of_clusters;
  for (unsigned b = 0; b < gridDim.x; b += cluster_blocks) of_clusters.push_back({cluster_blocks * blockDim.x});
  clusters = of_clusters.data();
  std::vector<Fiber> all;
  for (unsigned b = 0; b < gridDim.x; ++b) {
    shared.emplace_back(blockDim.x);
    for (unsigned t = 0; t < blockDim.x; ++t) all.push_back({dim3(t, 0, 0), dim3(b, 0, 0), &shared.back()});
  }
  run(all, kernel, arguments);
  fence.check();
}
