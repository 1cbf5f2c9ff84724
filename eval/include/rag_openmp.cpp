// rag_openmp.cpp: the OpenMP runtime of programs under ThreadSanitizer, with the entry points that g++ emits.
//
// GCC's libgomp is not instrumented: TSan sees none of its barriers and joins, and calls every right kernel racy. This
// file is compiled without instrumentation too, so that nothing in it orders anything by accident, and it tells TSan
// of exactly the orders that OpenMP promises (`__tsan_release`, `__tsan_acquire`); forks and joins are pthread's.
// Work is dealt out by number, also under schedule(dynamic): which threads meet on which memory does not depend on who
// comes first, and a race is found on one core and on a busy machine just the same. Threads stay from one region to the
// next, as libgomp's do, with what is theirs: but where another thread than the first one opens a region, it starts new
// ones. A region within another has a single thread, as libgomp has it. A source that needs more than is here (ordered loops,
// cancellation, doacross, task reductions, nested locks, target) does not link.
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);

namespace {

using Function = void (*)(void*);
using Copy = void (*)(void*, void*);
using Clock = std::chrono::steady_clock;
constexpr auto PATIENCE = std::chrono::milliseconds(20);  // how long a task waits for the thread that it was dealt to
enum Flags : unsigned { FINAL = 2, DEPEND = 8, UP = 256, GRAINSIZE = 512, IF = 1024, NOGROUP = 2048 };

struct Group { std::atomic<int> left{0}; Group* outer; };
struct Task {
  Function work = nullptr;
  char* data = nullptr;
  Task *parent = nullptr, *next_waiting = nullptr, *next_made = nullptr;
  Group* group = nullptr;
  int owner = 0;
  Clock::time_point made;
  std::atomic<int> children{0};
};
struct Loop { uint64_t start = 0, step = 0, total = 0, chunk = 1, next = 0; };  // from `next` on in iterations
struct Team {
  int size = 1;
  Team* outer = nullptr;
  Function work = nullptr;
  void *data = nullptr, *copied = nullptr;
  char order[2] = {};  // what TSan takes for the barriers, even and odd ones
  std::atomic<int> arrived{0}, barriers{0}, left{0}, undone{0}, lock{0};  // `undone` and `lock`: of the tasks
  Task *waiting = nullptr, *made = nullptr;
};
struct Thread {
  Team* team = nullptr;
  int number = 0;
  Loop loop;
  unsigned section = 0, sections = 0, singles = 0, tasks = 0;
  Task root, *task = &root;
};

thread_local Team alone;  // outside of every region
thread_local Thread outside;
thread_local Thread* inside = nullptr;
std::atomic<int> wanted{0}, critical{0}, atomically{0};

Thread& self() {
  if (inside) return *inside;
  outside.team = &alone;
  return outside;
}

void rest(int& tries) { ++tries < 50 ? sched_yield() : usleep(50); }

void take(std::atomic<int>& held) {
  int tries = 0;
  for (int free = 0; !held.compare_exchange_weak(free, 1); free = 0) rest(tries);
}

std::atomic<int>& word(void* place) { return *static_cast<std::atomic<int>*>(place); }
void lock(void* place) { take(word(place)); __tsan_acquire(place); }
void unlock(void* place) { __tsan_release(place); word(place) = 0; }

// Tasks: dealt out in turn, run by their threads where these wait. They are freed with the region.

void run(Task* task) {
  Thread& thread = self();
  Task* before = thread.task;
  thread.task = task;
  __tsan_acquire(task);
  task->work(task->data);
  thread.task = before;
  Team& team = *thread.team;
  __tsan_release(&team.order[team.barriers & 1]);  // no barrier ends while a task is undone
  __tsan_release(task->parent);
  if (task->group) { __tsan_release(task->group); --task->group->left; }
  --task->parent->children;
  --team.undone;
}

// Waits until `done`, and meanwhile runs tasks that `fit`: those dealt to this thread, and what has waited for long.
template <class Done, class Fit> void wait(Done done, Fit fit) {
  Thread& thread = self();
  Team& team = *thread.team;
  for (int tries = 0; !done();) {
    Task* found = nullptr;
    if (team.undone > 0) {
      take(team.lock);
      Task** at = &team.waiting;
      while (*at && !(fit(*at) && ((*at)->owner == thread.number || Clock::now() - (*at)->made > PATIENCE)))
        at = &(*at)->next_waiting;
      if ((found = *at)) *at = found->next_waiting;
      team.lock = 0;
    }
    if (found) run(found), tries = 0;
    else rest(tries);
  }
}

void make_task(Function work, void* data, Copy copy, long size, long align, bool now, const int64_t* range = nullptr) {
  Thread& thread = self();
  Team& team = *thread.team;
  align = std::max(align, 16L);
  char* own = static_cast<char*>(std::aligned_alloc(align, (size + align) / align * align));
  if (copy) copy(own, data);
  else std::memcpy(own, data, size);
  if (range) std::memcpy(own, range, 16);
  if (now || team.size == 1) {
    work(own);
    std::free(own);
    return;
  }
  Task* task = new Task;
  task->work = work, task->data = own, task->parent = thread.task, task->group = thread.task->group;
  task->owner = int((thread.number + ++thread.tasks) % team.size), task->made = Clock::now();
  ++task->parent->children, ++team.undone;
  if (task->group) ++task->group->left;
  __tsan_release(task);
  take(team.lock);
  task->next_made = team.made, team.made = task;
  Task** last = &team.waiting;
  while (*last) last = &(*last)->next_waiting;
  *last = task;
  team.lock = 0;
}

void open_group() { Task* task = self().task; task->group = new Group{{0}, task->group}; }
void close_group() {
  Task* task = self().task;
  Group* group = task->group;
  wait([=] { return group->left == 0; }, [=](Task* other) { return other->group == group; });
  __tsan_acquire(group);
  task->group = group->outer;
  delete group;
}

// Regions

void barrier() {
  Team& team = *self().team;
  if (team.size == 1) return;
  const int number = team.barriers;
  char* order = &team.order[number & 1];
  __tsan_release(order);
  const bool last = ++team.arrived == team.size;
  wait([&] { return last ? team.undone == 0 : team.barriers != number; }, [](Task*) { return true; });
  if (last) team.arrived = 0, team.barriers = number + 1;
  __tsan_acquire(order);
}

void* enter(void* thread) {
  inside = static_cast<Thread*>(thread);
  inside->team->work(inside->team->data);
  barrier();
  return nullptr;
}

// Threads that stay. What wakes them is the kernel's: TSan takes the locks and conditions of pthread for an order.
struct Kept { std::atomic<int> begun{0}; std::atomic<Thread*> member{nullptr}; };
std::atomic<bool> owned{false};
thread_local bool owns = false;  // the threads that stay are this one's
constexpr int MOST_KEPT = 1024;
Kept kept[MOST_KEPT];
int number_kept = 1;  // the first is the one that owns them

void* stay(void* place) {
  Kept& mine = *static_cast<Kept*>(place);
  for (int seen = 0;; ++seen) {
    while (mine.begun == seen) syscall(SYS_futex, &mine.begun, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    Thread* member = mine.member;
    Team* team = member->team;
    __tsan_acquire(team);
    enter(member);
    inside = nullptr;
    --team->left;
  }
}

void start(pthread_t* handle, void* (*work)(void*), void* data) {
  if (pthread_create(handle, nullptr, work, data) == 0) return;
  std::fprintf(stderr, "rag_openmp: no thread could be started\n");
  _exit(7);
}

void wake(Thread* members, int size) {
  for (; number_kept < size; ++number_kept) {
    pthread_t handle;
    start(&handle, stay, &kept[number_kept]);
    pthread_detach(handle);
  }
  Team* team = members->team;
  team->left = size - 1;
  __tsan_release(team);
  for (int i = 1; i < size; ++i) {
    kept[i].member = &members[i];
    ++kept[i].begun;
    syscall(SYS_futex, &kept[i].begun, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
}

int default_threads() {
  const char* set = std::getenv("OMP_NUM_THREADS");
  return wanted ? int(wanted) : set && std::atoi(set) > 0 ? std::atoi(set) : 4;
}

void region(Function work, void* data, unsigned threads, Loop loop = {}, unsigned sections = 0) {
  Thread* before = &self();
  Team team;
  team.outer = before->team, team.work = work, team.data = data;
  team.size = before->team->outer ? 1 : threads ? int(threads) : default_threads();
  Thread* members = new Thread[team.size];
  pthread_t* handles = new pthread_t[team.size];
  for (int i = 0; i < team.size; ++i) {
    members[i].team = &team, members[i].number = i, members[i].sections = sections, members[i].section = i + 1;
    members[i].loop = loop, members[i].loop.next = i * loop.chunk;
  }
  owns = owns || !owned.exchange(true);
  const bool stays = owns && team.size <= MOST_KEPT;
  if (stays) wake(members, team.size);
  for (int i = 1; !stays && i < team.size; ++i) start(&handles[i], enter, &members[i]);
  Thread* outer = inside;
  enter(&members[0]);
  inside = outer;
  for (int i = 1; !stays && i < team.size; ++i) pthread_join(handles[i], nullptr);
  for (int tries = 0; team.left > 0;) rest(tries);
  for (Task* task = team.made; task;) {
    Task* next = task->next_made;
    std::free(task->data);
    delete task;
    task = next;
  }
  delete[] handles;
  delete[] members;
}

// Loops: chunk c belongs to thread c modulo their number.

Loop loop_of(bool up, uint64_t start, uint64_t end, uint64_t step, uint64_t chunk, bool empty) {
  const uint64_t length = up ? end - start : start - end, stride = up ? step : -step;
  return {start, step, empty ? 0 : (length + stride - 1) / stride, std::max<uint64_t>(chunk, 1), 0};
}
Loop signed_loop(long start, long end, long step, long chunk) {
  return loop_of(step > 0, start, end, step, std::max(chunk, 1L), step > 0 ? start >= end : start <= end);
}
void begin(Loop loop) {
  Thread& thread = self();
  thread.loop = loop;
  thread.loop.next = thread.number * loop.chunk;
}
template <class T> bool next(T* from, T* to) {
  Thread& thread = self();
  Loop& loop = thread.loop;
  if (loop.next >= loop.total) return false;
  *from = T(loop.start + loop.next * loop.step);
  *to = T(loop.start + std::min(loop.next + loop.chunk, loop.total) * loop.step);
  loop.next += loop.chunk * thread.team->size;
  return true;
}

template <class T>
void task_loop(Function work, void* data, Copy copy, long size, long align, unsigned flags, unsigned long tasks, Loop loop) {
  if (!(flags & NOGROUP)) open_group();
  if (tasks == 0) tasks = self().team->size;
  if (flags & GRAINSIZE) tasks = loop.total / tasks;
  tasks = std::max<uint64_t>(1, std::min<uint64_t>(tasks, loop.total));
  for (uint64_t i = 0, at = 0; i < tasks && loop.total; ++i) {
    const uint64_t to = at + loop.total / tasks + (i < loop.total % tasks);
    const int64_t range[2] = {int64_t(loop.start + at * loop.step), int64_t(loop.start + to * loop.step)};
    make_task(work, data, copy, size, align, !(flags & IF) || flags & FINAL, range);
    at = to;
  }
  if (!(flags & NOGROUP)) close_group();
}

}  // namespace

using ull = unsigned long long;

extern "C" {

void GOMP_parallel(Function work, void* data, unsigned threads, unsigned) { region(work, data, threads); }
void GOMP_barrier() { barrier(); }
void GOMP_critical_start() { lock(&critical); }
void GOMP_critical_end() { unlock(&critical); }
void GOMP_critical_name_start(void** name) { lock(name); }
void GOMP_critical_name_end(void** name) { unlock(name); }
void GOMP_atomic_start() { lock(&atomically); }
void GOMP_atomic_end() { unlock(&atomically); }

bool GOMP_single_start() {
  Thread& thread = self();
  return int(thread.singles++ % thread.team->size) == thread.number;
}
void* GOMP_single_copy_start() {
  if (GOMP_single_start()) return nullptr;
  barrier();
  return self().team->copied;
}
void GOMP_single_copy_end(void* data) {
  self().team->copied = data;
  barrier();
}

#define NEXT(KIND)                                                                                  \
  bool GOMP_loop_##KIND##_next(long* from, long* to) { return next(from, to); }                     \
  bool GOMP_loop_ull_##KIND##_next(ull* from, ull* to) { return next(from, to); }
#define LOOP(KIND)                                                                                  \
  NEXT(KIND)                                                                                        \
  bool GOMP_loop_##KIND##_start(long start, long end, long step, long chunk, long* from, long* to) { \
    begin(signed_loop(start, end, step, chunk));                                                    \
    return next(from, to);                                                                          \
  }                                                                                                 \
  bool GOMP_loop_ull_##KIND##_start(bool up, ull start, ull end, ull step, ull chunk, ull* from, ull* to) { \
    begin(loop_of(up, start, end, step, chunk, up ? start >= end : start <= end));                  \
    return next(from, to);                                                                          \
  }                                                                                                 \
  void GOMP_parallel_loop_##KIND(Function work, void* data, unsigned threads, long start, long end, long step, \
                                 long chunk, unsigned) {                                            \
    region(work, data, threads, signed_loop(start, end, step, chunk));                              \
  }
#define RUNTIME_LOOP(KIND)                                                                          \
  NEXT(KIND)                                                                                        \
  bool GOMP_loop_##KIND##_start(long start, long end, long step, long* from, long* to) {            \
    begin(signed_loop(start, end, step, 1));                                                        \
    return next(from, to);                                                                          \
  }                                                                                                 \
  bool GOMP_loop_ull_##KIND##_start(bool up, ull start, ull end, ull step, ull* from, ull* to) {    \
    begin(loop_of(up, start, end, step, 1, up ? start >= end : start <= end));                      \
    return next(from, to);                                                                          \
  }                                                                                                 \
  void GOMP_parallel_loop_##KIND(Function work, void* data, unsigned threads, long start, long end, long step, unsigned) { \
    region(work, data, threads, signed_loop(start, end, step, 1));                                  \
  }
LOOP(static) LOOP(dynamic) LOOP(guided) LOOP(nonmonotonic_dynamic) LOOP(nonmonotonic_guided)
RUNTIME_LOOP(runtime) RUNTIME_LOOP(nonmonotonic_runtime) RUNTIME_LOOP(maybe_nonmonotonic_runtime)
void GOMP_loop_end() { barrier(); }
void GOMP_loop_end_nowait() {}

unsigned GOMP_sections_next() {
  Thread& thread = self();
  const unsigned section = thread.section;
  thread.section += thread.team->size;
  return section <= thread.sections ? section : 0;
}
unsigned GOMP_sections_start(unsigned count) {
  self().sections = count;
  self().section = self().number + 1;
  return GOMP_sections_next();
}
void GOMP_parallel_sections(Function work, void* data, unsigned threads, unsigned count, unsigned) {
  region(work, data, threads, {}, count);
}
void GOMP_sections_end() { barrier(); }
void GOMP_sections_end_nowait() {}

// Tasks with dependences run where they are made: in an order that keeps every dependence.
void GOMP_task(Function work, void* data, Copy copy, long size, long align, bool deferred, unsigned flags, void**, int) {
  make_task(work, data, copy, size, align, !deferred || flags & (FINAL | DEPEND));
}
void GOMP_taskloop(Function work, void* data, Copy copy, long size, long align, unsigned flags, unsigned long tasks, int,
                   long start, long end, long step) {
  task_loop<long>(work, data, copy, size, align, flags, tasks, signed_loop(start, end, step, 1));
}
void GOMP_taskloop_ull(Function work, void* data, Copy copy, long size, long align, unsigned flags, unsigned long tasks,
                       int, ull start, ull end, ull step) {
  const bool up = flags & UP;
  const Loop loop = loop_of(up, start, end, step, 1, up ? start >= end : start <= end);
  task_loop<ull>(work, data, copy, size, align, flags, tasks, loop);
}
void GOMP_taskwait() {
  Task* task = self().task;
  wait([=] { return task->children == 0; }, [=](Task* other) { return other->parent == task; });
  __tsan_acquire(task);
}
void GOMP_taskwait_depend(void**) {}
void GOMP_taskyield() {}
void GOMP_taskgroup_start() { open_group(); }
void GOMP_taskgroup_end() { close_group(); }

int omp_get_thread_num() { return self().number; }
int omp_get_num_threads() { return self().team->size; }
int omp_get_max_threads() { return default_threads(); }
int omp_get_num_procs() { return default_threads(); }
void omp_set_num_threads(int count) { wanted = count; }
int omp_in_parallel() {
  for (Team* team = self().team; team; team = team->outer)
    if (team->size > 1) return 1;
  return 0;
}
int omp_get_level() {
  int level = 0;
  for (Team* team = self().team; team->outer; team = team->outer) ++level;
  return level;
}
void omp_set_dynamic(int) {}
int omp_get_dynamic() { return 0; }
void omp_set_nested(int) {}
void omp_set_max_active_levels(int) {}
double omp_get_wtime() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
double omp_get_wtick() { return 1e-9; }
void omp_init_lock(void* place) { word(place) = 0; }
void omp_destroy_lock(void*) {}
void omp_set_lock(void* place) { lock(place); }
void omp_unset_lock(void* place) { unlock(place); }
int omp_test_lock(void* place) {
  int free = 0;
  if (!word(place).compare_exchange_strong(free, 1)) return 0;
  __tsan_acquire(place);
  return 1;
}

}  // extern "C"
