"""A problem as a parameterized call: worked out, compared with the module, at other sizes, and its gradients."""
