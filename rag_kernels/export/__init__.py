"""A kernel as a file or a folder: each format has a file in `forms`. `runtime` is what modules import."""
