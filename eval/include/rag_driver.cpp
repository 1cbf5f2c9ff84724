// rag_driver.cpp: a main() around the functions of one source, for sanitizers; no Python involved. For C++ an object of
// its own, which is compiled once; nvcc takes it in after the source (`rag_driver.h`).
//
//   program CALL_FILE...
//
// A file holds the arguments in order: a tag, then an int64 (tag 0), a double (1), a bool (2), or a tensor: tag 3
// (read) or 4 (written), dtype code and bits, rank, sizes, number of bytes, and for tag 3 the bytes; tag 5 is read as
// well, and has the number of the bytes that follow and are repeated. Tag 6 begins another call: the number of the bytes
// of its function's name, and these; arguments before the first are of a call of the first function. All integers are
// int64. Under ThreadSanitizer the last call is made up to 20 times, in 1.5 s of the processors: what a thread does from its
// twelfth region on shows then; else it is made once more where an output ends within a vector, and what lies behind it changes
// beside each store there. Every tensor gets an allocation of its own, exactly as long as it is. Ends with 0 after all calls, with 3 when
// a function refused one (and the rest of its file was left out), with 4 when there is no such function, with 7 when what
// lies behind an output was put back as it had been. CUDA: `program --anew CALL_FILE` makes the call, resets the device and
// makes it again: 8 when the second one fails or leaves its outputs, as on a device that a process comes to as its second.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>
#include <unistd.h>
#if defined(__linux__) && !defined(__CUDACC__) && !defined(__SANITIZE_THREAD__)
#define RAG_BESIDE
#include <atomic>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#endif
#include "rag_driver.h"
#ifdef __CUDACC__
#include <cuda_runtime.h>
#endif

namespace rag_driver {
namespace {  // no source puts functions of its own in their place

std::vector<char> read_file(const char* path) {
  std::vector<char> bytes;
  FILE* file = std::fopen(path, "rb");
  if (!file) std::exit(4);
  char part[65536];
  for (size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) bytes.insert(bytes.end(), part, part + n);
  std::fclose(file);
  return bytes;
}

struct Reader {
  const char* at;
  const char* end;
  int64_t integer() { int64_t v; std::memcpy(&v, at, 8); at += 8; return v; }
  double real() { double v; std::memcpy(&v, at, 8); at += 8; return v; }
};

#ifdef __CUDACC__
constexpr int UNWRITTEN = 0xA5;  // bytes of outputs before a call
#endif

void copy(void* to, const void* from, size_t bytes) {
#ifdef __CUDACC__
  cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
#else
  std::memcpy(to, from, bytes);
#endif
}

// `bytes` that begin with the `given` ones of `content` and repeat them.
void* allocate(const char* content, size_t given, size_t bytes) {
  void* place = nullptr;
#ifdef __CUDACC__
  if (cudaMalloc(&place, bytes ? bytes : 1) != cudaSuccess) std::exit(5);
#else
  place = std::malloc(bytes ? bytes : 1);
#endif
  char* start = static_cast<char*>(place);
  if (given) copy(start, content, given);
  for (size_t have = given; have && have < bytes; have *= 2)
    copy(start + have, start, have < bytes - have ? have : bytes - have);
  return place;
}

struct Argument { std::vector<int64_t> shape, strides; DLTensor tensor; };

typedef int (*Function)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

// Call it, and wait for what runs on a GPU; anything but 0 ends the program.
int run(Function function, const std::vector<TVMFFIAny>& values) {
  TVMFFIAny result;
  std::memset(&result, 0, sizeof result);
  if (function(nullptr, values.data(), int32_t(values.size()), &result) != 0) return 3;
#ifdef __CUDACC__
  if (cudaError_t e = cudaDeviceSynchronize()) { std::fprintf(stderr, "%s\n", cudaGetErrorString(e)); return 6; }
#endif
  return 0;
}

#ifdef RAG_BESIDE
// An output's last bytes lie at the start of a page that may not be written to. A store there stops in a handler, which
// writes anew what lies behind the output, as another thread might, and lets that one store happen. Who had read it, with
// the output's end in one vector, and puts it back takes away what was written there.
constexpr size_t VECTOR = 64, MOST_ENDS = 8;
struct End { char* page; size_t used; unsigned char stamp; };
End ends[MOST_ENDS];
size_t end_count = 0, page_bytes = 4096;
std::atomic<End*> stepping{nullptr};
thread_local bool steps = false;  // this thread
volatile sig_atomic_t put_back = 0;
struct sigaction former_fault, former_step;

void look_behind(const End& e) {
  for (size_t i = e.used; i < e.used + VECTOR; ++i)
    if (static_cast<unsigned char>(e.page[i]) != e.stamp) put_back = 1;
}

void on_fault(int, siginfo_t* info, void* context) {
  const char* at = static_cast<char*>(info->si_addr);
  End* found = nullptr;
  for (size_t i = 0; i < end_count; ++i)
    if (info->si_code == SEGV_ACCERR && at >= ends[i].page && at < ends[i].page + page_bytes) found = &ends[i];
  if (!found) { sigaction(SIGSEGV, &former_fault, nullptr); return; }  // it comes again
#ifdef __x86_64__
  if (steps) { mprotect(found->page, page_bytes, PROT_READ | PROT_WRITE); return; }  // one instruction, two of them
  for (End* none = nullptr; !stepping.compare_exchange_weak(none, found); none = nullptr) {}
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] |= 0x100;  // one instruction, then `on_step`
  steps = true;
#endif
  mprotect(found->page, page_bytes, PROT_READ | PROT_WRITE);
  std::memset(found->page + found->used, ++found->stamp, VECTOR);
}

void on_step(int, siginfo_t*, void* context) {
#ifdef __x86_64__
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~0x100LL;
#endif
  End* e = stepping.load();
  if (!e) { sigaction(SIGTRAP, &former_step, nullptr); return; }
  look_behind(*e);
  mprotect(e->page, page_bytes, PROT_READ);
  steps = false;
  stepping = nullptr;
}

// Put the output where its end has such a page; nothing where it ends with a vector.
void place_before_end(DLTensor& tensor, size_t bytes) {
  const size_t used = bytes % VECTOR;
  if (!used || end_count == MOST_ENDS) return;
  page_bytes = size_t(sysconf(_SC_PAGESIZE));
  const size_t before = (bytes - used + page_bytes - 1) / page_bytes * page_bytes;
  void* all = mmap(nullptr, before + page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) return;
  char* page = static_cast<char*>(all) + before;
  tensor.data = page + used - bytes;
  mprotect(page, page_bytes, PROT_READ);
  ends[end_count++] = End{page, used, 0};
}

// Whether a call puts back what lies behind its outputs.
bool puts_back(Function function, const std::vector<TVMFFIAny>& values) {
  struct sigaction fault, step;
  std::memset(&fault, 0, sizeof fault);
  fault.sa_flags = SA_SIGINFO;
  step = fault;
  fault.sa_sigaction = on_fault;
  step.sa_sigaction = on_step;
  sigaction(SIGSEGV, &fault, &former_fault);
  sigaction(SIGTRAP, &step, &former_step);
  run(function, values);
  sigaction(SIGSEGV, &former_fault, nullptr);
  sigaction(SIGTRAP, &former_step, nullptr);
  for (size_t i = 0; i < end_count; ++i) look_behind(ends[i]);
  return put_back;
}
#endif

int run_file(const char* path, std::vector<std::vector<char>>* outputs = nullptr) {
  const std::vector<char> bytes = read_file(path);
  Reader in{bytes.data(), bytes.data() + bytes.size()};
  std::vector<TVMFFIAny> values;
  Function function = rag_entries[0].function;
  bool begun = false;
  std::vector<std::pair<Argument*, size_t>> written;  // by the last call
  while (in.at < in.end) {
    TVMFFIAny value;
    std::memset(&value, 0, sizeof value);
    const int64_t tag = in.integer();
    if (tag == 6) {
      if (begun || !values.empty())
        if (const int code = run(function, values)) return code;
      begun = true;
      values.clear();
      written.clear();
      const size_t length = size_t(in.integer());
      function = nullptr;
      for (const RagEntry* entry = rag_entries; entry->name; ++entry)
        if (std::strlen(entry->name) == length && !std::memcmp(entry->name, in.at, length)) function = entry->function;
      if (!function) return 4;
      in.at += length;
      continue;
    }
    if (tag == 1) { value.type_index = kTVMFFIFloat; value.v_float64 = in.real(); }
    else if (tag == 0 || tag == 2) { value.type_index = tag ? kTVMFFIBool : kTVMFFIInt; value.v_int64 = in.integer(); }
    else {
      Argument* a = new Argument;
      const int64_t code = in.integer(), bits = in.integer(), rank = in.integer();
      for (int64_t i = 0; i < rank; ++i) a->shape.push_back(in.integer());
      a->strides.assign(rank, 1);
      for (int64_t i = rank - 2; i >= 0; --i) a->strides[i] = a->strides[i + 1] * a->shape[i + 1];
      const int64_t size = in.integer();
      const int64_t given = tag == 5 ? in.integer() : tag == 3 ? size : 0;
      void* place = allocate(in.at, given, size);
      in.at += given;
#ifdef __CUDACC__
      const DLDevice device{kDLCUDA, 0};
#else
      const DLDevice device{kDLCPU, 0};
#endif
      a->tensor = DLTensor{place, device, int32_t(rank), {uint8_t(code), uint8_t(bits), 1}, a->shape.data(),
                           a->strides.data(), 0};
      value.type_index = kTVMFFIDLTensorPtr;
      value.v_ptr = &a->tensor;
      if (tag == 4) written.emplace_back(a, size_t(size));
    }
    values.push_back(value);
  }
#ifdef __CUDACC__
  for (const auto& [argument, size] : written)
    if (outputs) cudaMemset(argument->tensor.data, UNWRITTEN, size);
#endif
  int code = run(function, values);
#ifdef __CUDACC__
  for (const auto& [argument, size] : written)
    if (outputs && !code) {
      outputs->emplace_back(size);
      copy(outputs->back().data(), argument->tensor.data, size);
    }
#endif
  (void)outputs;
#ifdef __SANITIZE_THREAD__
  const auto ends = std::clock() + 3 * CLOCKS_PER_SEC / 2;  // of the processors
  for (int made = 1; !code && made < 20 && std::clock() < ends; ++made) code = run(function, values);
#endif
#ifdef RAG_BESIDE
  end_count = 0;
  for (const auto& [argument, size] : written) place_before_end(argument->tensor, size);
  if (!code && end_count && puts_back(function, values)) {
    std::fprintf(stderr, "runtime error: what lies behind an output is read, and put back as it was\n");
    code = 7;
  }
#endif
  return code;
}

#ifdef __CUDACC__
// Whether a call that is right is so once more where nothing is left of what was set up for the first one.
int anew(const char* path) {
  std::vector<std::vector<char>> first, second;
  if (run_file(path, &first)) return 0;
  cudaGetLastError();
  cudaDeviceReset();
  const int code = run_file(path, &second);
  const cudaError_t error = cudaGetLastError();
  if (code || error != cudaSuccess) {
    std::fprintf(stderr, "%s\n", error != cudaSuccess ? cudaGetErrorString(error) : "it refuses the call");
    return 8;
  }
  for (size_t i = 0; i < first.size(); ++i) {
    size_t left = 0;
    for (size_t j = 0; j < first[i].size(); ++j)
      left += second[i][j] == char(UNWRITTEN) && first[i][j] != char(UNWRITTEN);
    if (2 * left > first[i].size()) { std::fprintf(stderr, "it leaves its output\n"); return 8; }
  }
  return 0;
}
#endif

}  // namespace
}  // namespace rag_driver

int main(int count, char** arguments) {
#ifdef __CUDACC__
  if (count > 2 && !std::strcmp(arguments[1], "--anew")) return rag_driver::anew(arguments[2]);
#endif
  int refused = 0;
  for (int i = 1; i < count; ++i) {
    const int code = rag_driver::run_file(arguments[i]);
    if (code && code != 3) return code;
    refused = refused ? refused : code;
  }
#ifdef __SANITIZE_THREAD__
  _exit(refused);  // no destructors: threads that wait for the next call may stand where they stand
#endif
  return refused;
}
