"""What the commands share: flags, settings, output, the help's groups and what `--version` says."""
