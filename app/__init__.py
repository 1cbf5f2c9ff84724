"""The explorer: a web page that shows the archive on this machine."""
