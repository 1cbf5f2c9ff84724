"""Run foreign code in children that cannot do harm; knows nothing of kernels."""
