"""Serve the judge, the archive and the offline writer to coding agents, over the Model Context Protocol."""
