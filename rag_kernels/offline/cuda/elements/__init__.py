"""Let a thread take neighbouring elements together: a file for each way in which these lie, `choice.py` chooses."""
