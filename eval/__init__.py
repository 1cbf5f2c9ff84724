"""Judge kernels: right or wrong, how fast, and what kind of result; needs torch, apache-tvm-ffi and ninja only."""
