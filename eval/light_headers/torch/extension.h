// Stands for torch's header of this name while a candidate's extension is built (eval/build/torch_extension.py): tensors,
// operators and Python bindings, without the C++ frontend (modules, optimizers, serialization), which takes half of
// a build's time.
#pragma once
#define RAG_KERNELS_LIGHT_EXTENSION
#include <torch/types.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
