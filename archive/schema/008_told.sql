-- The one number of a kernel, beside the medians: confirmed, else the lower end of the interval. See eval/told.py.
ALTER TABLE evaluations ADD COLUMN told DOUBLE;
ALTER TABLE evaluations ADD COLUMN told_eager DOUBLE;
ALTER TABLE evaluations ADD COLUMN told_compile DOUBLE;
ALTER TABLE evaluations ADD COLUMN told_floor DOUBLE;
COMMENT ON COLUMN evaluations.told IS 'what is shown of speedup: confirmed, else the lower of the lower ends of the intervals';
COMMENT ON COLUMN evaluations.told_eager IS 'what is shown of speedup_eager: confirmed, else the lower end of its interval';
COMMENT ON COLUMN evaluations.told_compile IS 'what is shown of speedup_compile: confirmed, else the lower end of its interval';
COMMENT ON COLUMN evaluations.told_floor IS 'what is shown of floor_fraction; null where the kernel was faster than the floor, which is none then';
UPDATE evaluations SET
    told_eager = CASE
        WHEN json_extract_string(judged, '$.verdict.measurement.confirmed') = 'true' THEN speedup_eager
        ELSE json_extract_string(judged, '$.verdict.measurement.speedup_eager.low')::DOUBLE
    END,
    told_compile = CASE
        WHEN json_extract_string(judged, '$.verdict.measurement.confirmed') = 'true' THEN speedup_compile
        ELSE json_extract_string(judged, '$.verdict.measurement.speedup_compile.low')::DOUBLE
    END,
    told_floor = CASE WHEN floor_fraction > 1 THEN NULL ELSE floor_fraction END;
UPDATE evaluations SET told = least(told_eager, told_compile);
