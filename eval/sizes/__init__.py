"""The sizes that stand in a problem's text: found, given other values, made to fit, and workloads of them."""
