"""C++ texts for kernels in places that have torch and compilers, and no tvm-ffi: a header, and a Python binding."""
