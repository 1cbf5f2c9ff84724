"""A static site of an archive: plain HTML that works without script, to be mailed or put on any web server."""
