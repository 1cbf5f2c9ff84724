// The contract of a kernel without any library: calls come as one C function over an array of values.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>
#ifndef RK_DEVICE
#define RK_DEVICE 1
#define RK_HOST 1
#endif

namespace rk {

struct Error { const char* kind; const char* message; };
#define RK_CHECK(condition, message) do { if (!(condition)) throw rk::Error{"ValueError", message}; } while (0)

// Half-precision storage for C++ sources. An element converts to float by itself; a float that is assigned rounds.
template <class To, class From> inline To bits_as(From v) { To out; __builtin_memcpy(&out, &v, sizeof out); return out; }
struct bf16 {
  uint16_t bits;
  operator float() const { return bits_as<float>(uint32_t(bits) << 16); }
  bf16& operator=(float v) {
    const uint32_t u = bits_as<uint32_t>(v), rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    bits = uint16_t((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
    return *this;
  }
};
struct f16 {
  uint16_t bits;
  operator float() const {
    const uint32_t rest = uint32_t(bits & 0x7fff) << 13;
    const uint32_t finite = bits_as<uint32_t>(bits_as<float>(rest) * 0x1p112f);
    return bits_as<float>((uint32_t(bits & 0x8000) << 16) | (rest >= 0x0f800000 ? rest | 0x7f800000 : finite));
  }
  f16& operator=(float v) {
    const uint32_t u = bits_as<uint32_t>(v), a = u & 0x7fffffff;
    const uint32_t normal = (a + 0xfff + ((a >> 13) & 1) - 0x38000000) >> 13;
    const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(a) + 0.5f) - 0x3f000000;
    const uint32_t rest = a > 0x7f800000 ? 0x7e00 : a >= 0x477ff000 ? 0x7c00 : a < 0x38800000 ? tiny : normal;
    bits = uint16_t(((u >> 16) & 0x8000) | rest);
    return *this;
  }
};

struct Device { int device_type, device_id; };

// A typed view of a tensor: `data` points at the first element, strides count elements.
template <class T> struct Tensor {
  T* data; int ndim; const int64_t* shape; const int64_t* strides; Device device;
  int64_t size(int i) const { return shape[i < 0 ? i + ndim : i]; }
  int64_t numel() const { int64_t n = 1; for (int i = 0; i < ndim; ++i) n *= shape[i]; return n; }
  bool is_contiguous() const { return true; }
};

inline thread_local void* current = nullptr;
template <class T> inline void* stream(const Tensor<T>&) { return current; }

template <class A> struct Unpack {
  static A from(const Value& a) {
    if (a.kind == Value::Tensor) throw Error{"TypeError", "a number was expected here"};
    return a.kind == Value::Real ? A(a.real) : A(a.integer);
  }
};
template <class T> struct Unpack<Tensor<T>> {
  static Tensor<T> from(const Value& a) {
    if (a.kind != Value::Tensor) throw Error{"TypeError", "a tensor was expected here"};
    if (a.bits != int(8 * sizeof(T))) throw Error{"TypeError", "a tensor has another dtype than the kernel declares"};
    return {static_cast<T*>(a.data), a.ndim, a.shape, a.strides, {a.device < 0 ? 1 : 2, a.device < 0 ? 0 : a.device}};
  }
};

template <class... A, size_t... I>
inline const char* call(void (*f)(A...), const Value* args, int n, void* stream, std::index_sequence<I...>) {
  try {
    if (n != int(sizeof...(A))) return "the kernel takes another number of arguments than the call has";
    current = stream;
    f(Unpack<A>::from(args[I])...);
#ifdef __CUDACC__
    if (cudaError_t e = cudaGetLastError()) return cudaGetErrorString(e);
#endif
    return nullptr;
  } catch (const Error& e) { return e.message; }
  catch (...) { return "the kernel threw an exception of its own"; }
}
template <class... A> inline const char* call(void (*f)(A...), const Value* args, int n, void* stream) {
  return call(f, args, n, stream, std::make_index_sequence<sizeof...(A)>{});
}

}  // namespace rk

#define RK_EXPORT(NAME, FUNCTION)                                                                       \
  extern "C" const char* rk_##NAME(const rk::Value* arguments, int count, void* stream) {               \
    return rk::call(&FUNCTION, arguments, count, stream);                                               \
  }

#ifdef __CUDACC__
#define RK_LAUNCH(KERNEL, GRID, BLOCK, SHARED, TENSOR, ...) do {                                                   \
    if ((SHARED) > 48 * 1024) cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, int(SHARED)); \
    KERNEL<<<GRID, BLOCK, SHARED, (cudaStream_t)rk::stream(TENSOR)>>>(__VA_ARGS__);                                \
  } while (0)
#endif
