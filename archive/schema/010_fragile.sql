-- Views alone changed: what is less accurate than PyTorch on ordinary finite inputs has no place in rankings. See
-- `bars` in eval/records.py.
SELECT 1;
