CREATE TABLE claims (
    id VARCHAR NOT NULL,
    candidate_id VARCHAR,
    problem_id VARCHAR NOT NULL,
    importer VARCHAR NOT NULL,
    origin VARCHAR NOT NULL,
    correct BOOLEAN,
    device_name VARCHAR NOT NULL,
    candidate_us DOUBLE,
    eager_us DOUBLE,
    compile_us DOUBLE,
    speedup_eager DOUBLE,
    speedup_compile DOUBLE,
    notes VARCHAR[] NOT NULL,
    warning VARCHAR NOT NULL,
    details VARCHAR NOT NULL,
    licence VARCHAR NOT NULL,
    attribution VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE claims IS 'What somebody else said of a candidate on a problem, or of a problem alone. Everything in it is as the source says: never measured here, never mixed with evaluations.';
COMMENT ON COLUMN claims.id IS 'c_ and a hash of candidate, problem and what is said';
COMMENT ON COLUMN claims.candidate_id IS 'candidates.id';
COMMENT ON COLUMN claims.problem_id IS 'problems.id';
COMMENT ON COLUMN claims.importer IS 'sakana, kernelbench, robust-kbench or gpu-mode';
COMMENT ON COLUMN claims.origin IS 'where in the source it stands';
COMMENT ON COLUMN claims.correct IS 'whether the source says that it is right; null when it says nothing';
COMMENT ON COLUMN claims.device_name IS 'for example NVIDIA H200';
COMMENT ON COLUMN claims.candidate_us IS 'time of one call in microseconds';
COMMENT ON COLUMN claims.eager_us IS 'the same of eager PyTorch';
COMMENT ON COLUMN claims.compile_us IS 'the same of torch.compile; null when that failed';
COMMENT ON COLUMN claims.speedup_eager IS 'median of pair ratios over eager';
COMMENT ON COLUMN claims.speedup_compile IS 'median of pair ratios over torch.compile';
COMMENT ON COLUMN claims.notes IS 'what a reader should know, a sentence each';
COMMENT ON COLUMN claims.warning IS 'a known exploit or an unfair problem: hides the kernel until it is judged here; or empty';
COMMENT ON COLUMN claims.details IS 'JSON of whatever else the source says; personal paths are cut out';
COMMENT ON COLUMN claims.licence IS 'of an imported kernel, as its source states it; empty for own work';
COMMENT ON COLUMN claims.attribution IS 'whom to name for an imported kernel; empty for own work';
COMMENT ON COLUMN claims.created_at IS 'when it was imported';
