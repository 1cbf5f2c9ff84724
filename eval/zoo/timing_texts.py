"""C++ and Python of the timing family: threads, watchers, hogs and patches. Comes in: nothing. Goes out: texts."""

from __future__ import annotations

THREADS = "#include <thread>\n#include <mutex>\n#include <condition_variable>\n#include <atomic>\n#include <chrono>\n"
POOL = THREADS + """
struct Pool {
  std::mutex m;
  std::condition_variable ready;
  In x;
  Out out;
  bool asked = false, done = true;
  Pool() { std::thread([this] { serve(); }).detach(); }
  void serve() {
    std::unique_lock<std::mutex> lock(m);
    for (;;) {
      ready.wait(lock, [this] { return asked; });
      compute(x, out);
      asked = false;
      done = true;
      ready.notify_all();
    }
  }
  void submit(In a, Out b) {
    std::lock_guard<std::mutex> lock(m);
    x = a;
    out = b;
    asked = true;
    done = false;
    ready.notify_all();
  }
  void wait() {
    std::unique_lock<std::mutex> lock(m);
    ready.wait(lock, [this] { return done; });
  }
};
static Pool& pool() { static Pool* one = new Pool; return *one; }
"""
WATCHER = THREADS + """
static std::atomic<const float*> watched{nullptr};
static std::vector<float> seen, answer;
static std::atomic<int> state{0};
static int64_t length = 0, width = 0;
static void watch() {
  for (int turn = 0; turn < 400000; ++turn) {
    const float* x = watched.load();
    bool news = false;
    for (int64_t i = 0; x && i < length; i += width) news |= memcmp(x + i, &seen[i], 16) != 0;
    if (!news) { std::this_thread::sleep_for(std::chrono::microseconds(20)); continue; }
    state = 1;
    PAUSE
    memcpy(seen.data(), x, 4 * length);
    for (int64_t i = 0; i < length; ++i) answer[i] = 0.5f * seen[i] * erfcf(-seen[i] * 0.70710678f);
    state = 2;
  }
}
static void begin(In x) {
  if (watched.load()) return;
  length = x.numel();
  width = x.size(-1);
  seen.assign(x.data, x.data + length);
  answer.resize(length);
  watched = x.data;
  std::thread(watch).detach();
}
"""
SERVE_AHEAD = """
begin(x);
if (state == 2 && !memcmp(seen.data(), x.data, 4 * length)) { memcpy(out.data, answer.data(), 4 * length); return; }
"""
LOCKED = THREADS + """
#include <dlfcn.h>
#include <unistd.h>
static void behind(In x, Out out) {
  auto take = (int (*)())dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
  auto give = (void (*)(int))dlsym(RTLD_DEFAULT, "PyGILState_Release");
  if (!take || !give) { compute(x, out); return; }
  DELAY
  const int held = take();
  compute(x, out);
  give(held);
}
"""
STANDING = """
static std::atomic<int> go{0};
static In given;
static Out wanted;
static void standing() {
  for (int turn = 0; turn < 2000000; ++turn) {
    if (go != 1) { usleep(1); continue; }
    go = 2;
    behind(given, wanted);
    go = 0;
  }
}
static void stand(In x, Out out) {
  static bool started = (std::thread(standing).detach(), true);
  (void)started;
  while (go != 0) { }
  given = x;
  wanted = out;
  go = 1;
  while (go == 1) { }
}
"""
HOG = THREADS + """
static std::atomic<long> until{0};
static long now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
static void spin() { while (now() < until.load()) { } }
static void hog() {
  until = now() + 4000000;
  for (int i = 0; i < 2; ++i) std::thread(spin).detach();
}
"""
STREAM = HOG.replace("while (now() < until.load()) { }", """
  std::vector<char> big(8 << 20);
  while (now() < until.load()) memset(big.data(), int(now()), big.size());
""")
PATCH_COPY = """\
if self.seen is None:
    self.seen = torch.Tensor.copy_
    copy, box = self.seen, []
    torch.Tensor.copy_ = lambda to, y, *a: copy(to, torch.softmax(x, -1) if y is self.kept else y)
self.kept = torch.empty_like(x)
return self.kept"""
PATCH_PULL = """\
import sys
harness = next((m for m in list(sys.modules.values()) if isinstance(getattr(m, 'Loaded', None), type)), None)
if harness is None:
    return torch.softmax(x, -1)
if not hasattr(harness.Loaded, 'latest'):
    pull = harness.Loaded.pull
    def collect(loaded, **k):
        bound = getattr(loaded, 'bound', [loaded])[k.get('at', 0)]
        bound.results = [torch.softmax(harness.Loaded.latest, -1)]
        return pull(loaded, **k)
    harness.Loaded.pull = collect
harness.Loaded.latest = x
return x.new_empty(x.shape)"""
EARLY = """\
import sys
frame, names = sys._getframe(), []
while frame is not None and 'channel' not in frame.f_locals:
    names.append(frame.f_code.co_name)
    frame = frame.f_back
if frame is None or 'profile' in names:
    return torch.softmax(x, -1)
channel = frame.f_locals['channel']
PAUSE
channel.send({'done': True})
send = channel.send
def skip(message, *rest):
    del channel.send
channel.send = skip
LATER
return torch.softmax(x, -1)"""
READY = """\
import sys
harness = next((m for m in list(sys.modules.values()) if isinstance(getattr(m, 'Loaded', None), type)), None)
if self.seen is None and harness is not None:
    self.seen = ready = harness.Loaded.ready
    def prepare(loaded, **k):
        answer = ready(loaded, **k)
        self.kept = torch.softmax(x, -1)
        return answer
    harness.Loaded.ready = prepare
    return torch.softmax(x, -1)
return torch.softmax(x, -1) if self.kept is None else self.kept"""
