"""The judge's ends of two conversations: with a problem's worker and with a candidate's."""
