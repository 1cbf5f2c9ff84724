"""What tests share beside the flat files: cases, builders and fixtures, by what they are about."""
