"""Runs over many problems: growth overnight, sampling apart from judging, replay."""
