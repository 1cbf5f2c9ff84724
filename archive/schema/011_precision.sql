-- Views alone changed: a kernel in TF32 may claim its speed-up over baselines that were allowed TF32. See COMPARABLE in
-- eval/records.py.
SELECT 1;
