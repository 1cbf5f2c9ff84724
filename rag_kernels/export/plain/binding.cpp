// Makes a Python module of kernels, over the C API of Python alone: tensors are asked for their data and sizes.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <deque>
#include <cmath>
#include <string>
#include <vector>

typedef const char* (*Function)(const rk::Value*, int, void*);

struct Sizes { std::vector<int64_t> shape, strides; };

// Return a number that a method or an attribute of a tensor gives, or -1 with a Python error set.
static int64_t number(PyObject* found) {
  if (!found) return -1;
  const int64_t value = PyLong_AsLongLong(found);
  Py_DECREF(found);
  return value;
}

static bool sizes_of(PyObject* tensor, Sizes& sizes) {
  PyObject* shape = PyObject_GetAttrString(tensor, "shape");
  if (!shape) return false;
  for (Py_ssize_t i = 0, n = PySequence_Size(shape); i < n; ++i) sizes.shape.push_back(number(PySequence_GetItem(shape, i)));
  Py_DECREF(shape);
  sizes.strides.resize(sizes.shape.size());
  int64_t stride = 1;
  for (size_t i = sizes.shape.size(); i--; stride *= sizes.shape[i]) sizes.strides[i] = stride;
  return !PyErr_Occurred();
}

static bool tensor_of(PyObject* argument, rk::Value& value, Sizes& sizes) {
  if (!sizes_of(argument, sizes)) return false;
  PyObject* whole = PyObject_CallMethod(argument, "is_contiguous", nullptr);
  if (!whole) return false;
  const bool contiguous = whole == Py_True;
  Py_DECREF(whole);
  if (!contiguous) { PyErr_SetString(PyExc_ValueError, "a kernel takes contiguous tensors"); return false; }
  value.kind = rk::Value::Tensor;
  value.data = reinterpret_cast<void*>(number(PyObject_CallMethod(argument, "data_ptr", nullptr)));
  value.bits = 8 * int(number(PyObject_CallMethod(argument, "element_size", nullptr)));
  value.device = int(number(PyObject_CallMethod(argument, "get_device", nullptr)));
  value.ndim = int(sizes.shape.size()), value.shape = sizes.shape.data(), value.strides = sizes.strides.data();
  return !PyErr_Occurred();
}

static bool value_of(PyObject* argument, rk::Value& value, Sizes& sizes) {
  value = rk::Value{};
  if (PyLong_Check(argument)) {  // booleans too
    value.kind = rk::Value::Integer, value.integer = PyLong_AsLongLong(argument), value.real = double(value.integer);
  } else if (PyFloat_Check(argument)) {
    value.kind = rk::Value::Real, value.real = PyFloat_AsDouble(argument), value.integer = int64_t(value.real);
  } else return tensor_of(argument, value, sizes);
  return !PyErr_Occurred();
}

@CURRENT@
static PyObject* call(Function function, PyObject* arguments) {
  const Py_ssize_t count = PyTuple_Size(arguments);
  std::vector<rk::Value> values(count);
  std::deque<Sizes> sizes(count);
  int device = -2;  // of no tensor yet; -1 is the CPU
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!value_of(PyTuple_GetItem(arguments, i), values[i], sizes[i])) return nullptr;
    if (values[i].kind != rk::Value::Tensor) continue;
    if (device != -2 && values[i].device != device) {
      PyErr_SetString(PyExc_ValueError, "all tensors must be on one device");
      return nullptr;
    }
    device = values[i].device;
  }
  @CONSTANTS@
  @WHERE@
  if (PyErr_Occurred()) return nullptr;
  const char* wrong;
  Py_BEGIN_ALLOW_THREADS
  wrong = function(values.data(), int(values.size()), @QUEUE@);
  Py_END_ALLOW_THREADS
  if (wrong) { PyErr_SetString(PyExc_RuntimeError, wrong); return nullptr; }
  Py_RETURN_NONE;
}

@FUNCTIONS@
static PyMethodDef methods[] = {@METHODS@{nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernels", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
#define RK_JOINED(A, B) A##B
#define RK_INIT(NAME) RK_JOINED(PyInit_, NAME)
PyMODINIT_FUNC RK_INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
