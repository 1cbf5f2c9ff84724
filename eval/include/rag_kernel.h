// rag_kernel.h: the contract of a kernel-tier source, over tvm-ffi's C ABI alone.
//
//   #include "rag_kernel.h"
//   void scale(rk::Tensor<const float> x, double factor, rk::Tensor<float> out) {
//     for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] * float(factor);
//   }
//   RK_EXPORT(forward, scale)
//
// Arguments arrive in the order of the problem's functional call: inputs, parameters, buffers, then the numeric
// constants, then the outputs, which the caller has allocated. A Tensor is a view; nothing is copied. Integers
// arrive as int64_t, floats as double, booleans as bool. Throw with RK_CHECK(condition, "message").
// The result is an ordinary tvm-ffi library: `tvm_ffi.load_module(path).forward(...)` works from any framework.
//
// A CUDA source may be split: device code under `#if RK_DEVICE`, the rest under `#if RK_HOST`, kernels declared
// extern "C" __global__ and launched by RK_LAUNCH with arguments of exactly the kernel's types. nvcc compiles both
// at once; while a kernel is being tried out, NVRTC compiles the device part alone, in a tenth of the time.
#pragma once
#ifndef RK_DEVICE
#define RK_DEVICE 1
#define RK_HOST 1
#endif

#ifdef __CUDACC_RTC__
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned uint32_t; typedef unsigned long long uint64_t;
#endif

#ifdef __CUDA_FP8_TYPES_EXIST__
namespace rk {
// Roundings as PyTorch 2.13 has them: cuda_fp8.h's own make 57344 of what is infinite in e5m2, and drop a NaN's sign.
__host__ __device__ inline __nv_fp8_e4m3 to_e4m3(float v) {
  __nv_fp8_e4m3 q;
  q.__x = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
  if (v != v) q.__x = signbit(v) ? 0xff : 0x7f;
  return q;
}
__host__ __device__ inline __nv_fp8_e5m2 to_e5m2(float v) {
  __nv_fp8_e5m2 q;
  q.__x = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E5M2);
  if (!(fabsf(v) < 61440.0f)) q.__x = (signbit(v) ? 0x80 : 0) | (v != v ? 0x7f : 0x7c);
  return q;
}
}  // namespace rk
#endif

#if RK_HOST
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <utility>

namespace rk {

struct Error { const char* kind; const char* message; };
#define RK_CHECK(condition, message) do { if (!(condition)) throw rk::Error{"ValueError", message}; } while (0)

// Half-precision storage for C++ sources (CUDA sources include cuda_fp16.h / cuda_bf16.h and use __half). An element
// converts to float by itself, and a float that is assigned rounds to nearest even; loops over both vectorise.
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
    const uint32_t rest = uint32_t(bits & 0x7fff) << 13;  // exponent and fraction where a float has them
    const uint32_t finite = bits_as<uint32_t>(bits_as<float>(rest) * 0x1p112f);
    return bits_as<float>((uint32_t(bits & 0x8000) << 16) | (rest >= 0x0f800000 ? rest | 0x7f800000 : finite));
  }
  f16& operator=(float v) {
    const uint32_t u = bits_as<uint32_t>(v), a = u & 0x7fffffff;
    const uint32_t normal = (a + 0xfff + ((a >> 13) & 1) - 0x38000000) >> 13;
    const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(a) + 0.5f) - 0x3f000000;  // in steps of 2^-24
    const uint32_t rest = a > 0x7f800000 ? 0x7e00 : a >= 0x477ff000 ? 0x7c00 : a < 0x38800000 ? tiny : normal;
    bits = uint16_t(((u >> 16) & 0x8000) | rest);
    return *this;
  }
};

// Eight bits as PyTorch 2.13 rounds to them: past its range an e4m3 is 448 (it has no infinity), an e5m2 infinite. CUDA
// sources include cuda_fp8.h and use __nv_fp8_e4m3 and __nv_fp8_e5m2.
struct e4m3 {
  uint8_t bits;
  operator float() const {
    const uint32_t rest = uint32_t(bits & 0x7f) << 20;  // exponent and fraction where a float has them
    const float tiny = bits_as<float>(rest + 0x3c800000) - 0x1p-6f, normal = bits_as<float>(rest + 0x3c000000);
    const uint32_t finite = bits_as<uint32_t>(rest < 0x00800000 ? tiny : normal);
    return bits_as<float>((uint32_t(bits & 0x80) << 24) | (rest == 0x07f00000 ? 0x7fc00000 : finite));
  }
  e4m3& operator=(float v) {
    const uint32_t u = bits_as<uint32_t>(v), a = u & 0x7fffffff;
    const uint32_t normal = (a + 0x7ffff + ((a >> 20) & 1) - 0x3c000000) >> 20;
    const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(a) + 16384.0f) - 0x46800000;  // in steps of 2^-9
    const uint32_t finite = a < 0x3c800000 ? tiny : normal < 0x7e ? normal : 0x7e;
    bits = uint8_t(((u >> 24) & 0x80) | (a > 0x7f800000 ? 0x7f : finite));
    return *this;
  }
};
struct e5m2 {
  uint8_t bits;
  operator float() const {
    const uint32_t rest = uint32_t(bits & 0x7f) << 21;
    const float tiny = bits_as<float>(rest + 0x38800000) - 0x1p-14f, normal = bits_as<float>(rest + 0x38000000);
    const uint32_t finite = bits_as<uint32_t>(rest < 0x00800000 ? tiny : normal);
    return bits_as<float>((uint32_t(bits & 0x80) << 24) | (rest >= 0x0f800000 ? rest | 0x7f800000 : finite));
  }
  e5m2& operator=(float v) {
    const uint32_t u = bits_as<uint32_t>(v), a = u & 0x7fffffff;
    const uint32_t normal = (a + 0xfffff + ((a >> 21) & 1) - 0x38000000) >> 21;
    const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(a) + 128.0f) - 0x43000000;  // in steps of 2^-16
    const uint32_t finite = a < 0x38800000 ? tiny : normal < 0x7c ? normal : 0x7c;
    bits = uint8_t(((u >> 24) & 0x80) | (a > 0x7f800000 ? 0x7f : finite));
    return *this;
  }
};
#ifndef __CUDA_FP8_TYPES_EXIST__
inline e4m3 to_e4m3(float v) { e4m3 q; q = v; return q; }
inline e5m2 to_e5m2(float v) { e5m2 q; q = v; return q; }
#endif

template <class T> struct DType;
#define RK_DTYPE(T, CODE, BITS) template <> struct DType<T> { static constexpr int code = CODE, bits = BITS; }
RK_DTYPE(float, kDLFloat, 32); RK_DTYPE(double, kDLFloat, 64); RK_DTYPE(f16, kDLFloat, 16); RK_DTYPE(bf16, kDLBfloat, 16);
RK_DTYPE(int64_t, kDLInt, 64); RK_DTYPE(int32_t, kDLInt, 32); RK_DTYPE(int16_t, kDLInt, 16); RK_DTYPE(int8_t, kDLInt, 8);
RK_DTYPE(uint8_t, kDLUInt, 8); RK_DTYPE(bool, kDLBool, 8);
RK_DTYPE(e4m3, kDLFloat8_e4m3fn, 8); RK_DTYPE(e5m2, kDLFloat8_e5m2, 8);
#ifdef __CUDA_FP16_TYPES_EXIST__
RK_DTYPE(__half, kDLFloat, 16);
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
RK_DTYPE(__nv_bfloat16, kDLBfloat, 16);
#endif
#ifdef __CUDA_FP8_TYPES_EXIST__
RK_DTYPE(__nv_fp8_e4m3, kDLFloat8_e4m3fn, 8); RK_DTYPE(__nv_fp8_e5m2, kDLFloat8_e5m2, 8);
#endif
template <class T> struct DType<const T> : DType<T> {};

// A typed view of a tensor: `data` points at the first element, strides count elements.
template <class T> struct Tensor {
  T* data; int ndim; const int64_t* shape; const int64_t* strides; DLDevice device;
  int64_t size(int i) const { return shape[i < 0 ? i + ndim : i]; }
  int64_t numel() const { int64_t n = 1; for (int i = 0; i < ndim; ++i) n *= shape[i]; return n; }
  bool is_contiguous() const {
    int64_t expected = 1;
    if (strides) for (int i = ndim - 1; i >= 0; --i) {
      if (shape[i] != 1 && strides[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }
};

// The CUDA stream to launch on (cast to cudaStream_t).
template <class T> inline void* stream(const Tensor<T>& t) { return TVMFFIEnvGetStream(t.device.device_type, t.device.device_id); }

template <class A> struct Unpack;
template <class T> struct Unpack<Tensor<T>> {
  static Tensor<T> from(const TVMFFIAny& a) {
    const DLTensor* t = nullptr;
    if (a.type_index == kTVMFFIDLTensorPtr) t = static_cast<const DLTensor*>(a.v_ptr);
    else if (a.type_index == kTVMFFITensor) t = TVMFFITensorGetDLTensorPtr(a.v_obj);
    else throw Error{"TypeError", "a tensor was expected here"};
    if (t->dtype.code != DType<T>::code || t->dtype.bits != DType<T>::bits)
      throw Error{"TypeError", "a tensor has another dtype than the kernel declares"};
    return {reinterpret_cast<T*>(static_cast<char*>(t->data) + t->byte_offset), t->ndim, t->shape, t->strides, t->device};
  }
};
template <class A> struct UnpackNumber {
  static A from(const TVMFFIAny& a) {
    if (a.type_index == kTVMFFIInt || a.type_index == kTVMFFIBool) return A(a.v_int64);
    if (a.type_index == kTVMFFIFloat) return A(a.v_float64);
    throw Error{"TypeError", "a number was expected here"};
  }
};
template <> struct Unpack<int64_t> : UnpackNumber<int64_t> {};
template <> struct Unpack<int32_t> : UnpackNumber<int32_t> {};
template <> struct Unpack<bool> : UnpackNumber<bool> {};
template <> struct Unpack<double> : UnpackNumber<double> {};
template <> struct Unpack<float> : UnpackNumber<float> {};

// Hands an error to the caller without a native back trace: tvm-ffi's takes a second to read all symbols.
inline int raise(const char* kind, const char* message) {
  const TVMFFIByteArray k{kind, __builtin_strlen(kind)}, m{message, __builtin_strlen(message)}, none{"", 0};
  TVMFFIObjectHandle error = nullptr;
  if (TVMFFIErrorCreate(&k, &m, &none, &error) == 0) {
    TVMFFIErrorSetRaised(error);
    TVMFFIObjectDecRef(error);
  }
  return -1;
}

template <class... A, size_t... I>
inline int call(void (*f)(A...), const TVMFFIAny* args, int32_t n, std::index_sequence<I...>) {
  try {
    if (n != int32_t(sizeof...(A))) throw Error{"TypeError", "the kernel takes another number of arguments than the call has"};
    f(Unpack<A>::from(args[I])...);
#ifdef __CUDACC__
    if (cudaError_t e = cudaGetLastError()) throw Error{"RuntimeError", cudaGetErrorString(e)};
#endif
    return 0;
  } catch (const Error& e) { return raise(e.kind, e.message); }
  catch (...) { return raise("RuntimeError", "the kernel threw an exception of its own"); }
}
template <class... A> inline int call(void (*f)(A...), const TVMFFIAny* args, int32_t n) {
  return call(f, args, n, std::make_index_sequence<sizeof...(A)>{});
}

}  // namespace rk

#define RK_EXPORT(NAME, FUNCTION)                                                                                  \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##NAME(void*, const TVMFFIAny* a, int32_t n, TVMFFIAny*) {           \
    return rk::call(&FUNCTION, a, n);                                                                              \
  }

#ifdef __CUDACC__
// Launch on the stream of a tensor.
#define RK_LAUNCH(KERNEL, GRID, BLOCK, SHARED, TENSOR, ...) do {                                                   \
    if ((SHARED) > 48 * 1024) cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, int(SHARED)); \
    KERNEL<<<GRID, BLOCK, SHARED, (cudaStream_t)rk::stream(TENSOR)>>>(__VA_ARGS__);                                \
  } while (0)
#elif defined(RK_SPLIT)
struct dim3 { unsigned x, y, z; dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {} };
namespace rk {
// What the loader hands over: cuLaunchKernel, and the functions of the device part by name.
typedef int (*Launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
struct Kernels { Launch launch; int32_t count; const char* const* names; void* const* functions; };
static Kernels kernels{};
template <class... A>
inline void launch(const char* name, dim3 grid, dim3 block, size_t shared, void* stream, A... args) {
  void* pointers[] = {static_cast<void*>(&args)..., nullptr};
  for (int32_t i = 0; i < kernels.count; ++i)
    if (__builtin_strcmp(kernels.names[i], name) == 0) {
      if (kernels.launch(kernels.functions[i], grid.x, grid.y, grid.z, block.x, block.y, block.z, unsigned(shared), stream,
                         pointers, nullptr) != 0)
        throw Error{"RuntimeError", "a kernel could not be launched"};
      return;
    }
  throw Error{"RuntimeError", "the device part has no kernel of that name"};
}
}  // namespace rk
#define RK_LAUNCH(KERNEL, GRID, BLOCK, SHARED, TENSOR, ...) \
  rk::launch(#KERNEL, GRID, BLOCK, SHARED, rk::stream(TENSOR), __VA_ARGS__)
extern "C" TVM_FFI_DLL_EXPORT void rk_set_kernels(rk::Launch launch, int32_t count, const char* const* names,
                                                  void* const* functions) {
  rk::kernels = rk::Kernels{launch, count, names, functions};
}
#endif
#endif  // RK_HOST
