// What `cuda_emulation.h` declares: fibers that take turns, barriers, and launches.
#include "cuda_emulation.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <deque>
#include <map>
#include <set>
#include <utility>

dim3 threadIdx, blockIdx, blockDim, gridDim;
Barriers* barriers = nullptr;
unsigned cluster_blocks = 1;
Barrier* clusters = nullptr;

// A fiber for each thread of a block (or of several): it runs until it has to wait for others, then the next one does.
// They take turns forwards and backwards, so that what reads before it waited for the writer finds nothing there.
struct Fiber {
  ucontext_t at;
  dim3 thread, block;
  Barriers* barriers;
  bool done;
};
static Fiber* running = nullptr;
static ucontext_t scheduler;
static Kernel body;
static void* arguments_of;
void let_others() { swapcontext(&running->at, &scheduler); }
static void live() {
  for (;; let_others()) body(arguments_of), running->done = true;
}
static void run(std::vector<Fiber>& fibers, Kernel kernel, void* arguments) {
  constexpr size_t stack = 256 << 10;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* stacks = (char*)mmap(nullptr, fibers.size() * stack, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (stacks == MAP_FAILED) std::abort();
  body = kernel, arguments_of = arguments;
  for (size_t f = 0; f < fibers.size(); ++f) {
    getcontext(&fibers[f].at);
    fibers[f].at.uc_stack = {stacks + f * stack, 0, stack};
    makecontext(&fibers[f].at, live, 0);
  }
  size_t left = fibers.size();
  for (bool forwards = true; left; forwards = !forwards)
    for (size_t f = 0; f < fibers.size(); ++f) {
      running = &fibers[forwards ? f : fibers.size() - 1 - f];
      if (running->done) continue;
      threadIdx = running->thread, blockIdx = running->block, barriers = running->barriers;
      swapcontext(&scheduler, &running->at);
      left -= running->done;
    }
  munmap(stacks, fibers.size() * stack);
}

void Barrier::wait() {
  if (++here == expected) {
    here = 0, ++round;
  } else {
    for (const unsigned mine = round; round == mine;) let_others();
  }
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
    team.push_back({{}, dim3(t % block.x, t / block.x % block.y, t / block.x / block.y), dim3(0, 0, 0), &shared, false});
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
    for (unsigned t = 0; t < blockDim.x; ++t) all.push_back({{}, dim3(t, 0, 0), dim3(b, 0, 0), &shared.back(), false});
  }
  run(all, kernel, arguments);
  fence.check();
}
