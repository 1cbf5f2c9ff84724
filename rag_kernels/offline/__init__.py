"""The offline writer: real kernels with no key and no network. Start reading at `writer.py`."""
