#ifndef RK_VALUE
#define RK_VALUE
#include <stdint.h>
namespace rk {
// One argument of a call: a number, or a contiguous tensor.
struct Value {
  enum Kind { Integer, Real, Tensor } kind;
  int64_t integer; double real;
  void* data; int bits; int ndim; int device; const int64_t* shape; const int64_t* strides;
};
}  // namespace rk
#endif
