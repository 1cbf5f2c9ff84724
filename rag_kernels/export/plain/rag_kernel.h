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

@CHECKS_AND_HALVES@

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
@LAUNCH@
#endif
