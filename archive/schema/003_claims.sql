CREATE TABLE claims (
    id VARCHAR PRIMARY KEY,
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
COMMENT ON TABLE claims IS 'What somebody else said of a candidate on a problem. Never measured here, never mixed with evaluations.';
COMMENT ON COLUMN claims.id IS 'c_ and a hash of candidate, problem and what is said';
COMMENT ON COLUMN claims.candidate_id IS 'candidates.id; null when only the problem was imported';
COMMENT ON COLUMN claims.problem_id IS 'problems.id';
COMMENT ON COLUMN claims.importer IS 'sakana, kernelbench, robust-kbench or gpu-mode';
COMMENT ON COLUMN claims.origin IS 'where in the source it stands';
COMMENT ON COLUMN claims.correct IS 'whether the source says that it is right; null when it says nothing';
COMMENT ON COLUMN claims.device_name IS 'where it was measured, as the source says; empty when it does not';
COMMENT ON COLUMN claims.candidate_us IS 'claimed time of one call in microseconds';
COMMENT ON COLUMN claims.eager_us IS 'claimed time of eager PyTorch';
COMMENT ON COLUMN claims.compile_us IS 'claimed time of torch.compile';
COMMENT ON COLUMN claims.speedup_eager IS 'claimed, over eager PyTorch';
COMMENT ON COLUMN claims.speedup_compile IS 'claimed, over torch.compile';
COMMENT ON COLUMN claims.notes IS 'what a reader should know, a sentence each';
COMMENT ON COLUMN claims.warning IS 'a known exploit or an unfair problem: hides the kernel until it is judged here; or empty';
COMMENT ON COLUMN claims.details IS 'JSON of whatever else the source says; personal paths are cut out';
COMMENT ON COLUMN claims.licence IS 'of kernel and problem, as the source states it';
COMMENT ON COLUMN claims.attribution IS 'whom to name';
COMMENT ON COLUMN claims.created_at IS 'when it was imported';

-- As before, and kernels that so far are only claimed: without a figure, so that nothing ranks by one.
CREATE OR REPLACE VIEW kernel_cards AS
SELECT
    k.id,
    e.problem_id,
    p.name AS problem_name,
    c.source,
    f.source AS functional_source,
    c.tier,
    c.backend,
    e.trust,
    coalesce(r.reason, e.warning) AS retracted,
    e.label,
    e."precision",
    i.text AS idea,
    k.writer,
    k.model,
    f.graph_key,
    f.operators,
    f.ranks,
    f.dtypes,
    f.shapes,
    e.device_name,
    e.device_arch,
    e.candidate_us,
    e.eager_us,
    e.compile_us,
    e.speedup_eager,
    e.speedup_compile,
    e.floor_fraction,
    k.licence,
    k.attribution,
    k.created_at,
    e.speedup,
    e.device_key,
    e.evaluation_id,
    e.judged_at
FROM (
    SELECT
        kernel_id, problem_id, functional_id, trust, '' AS warning, label, "precision", device_name, device_arch,
        candidate_us, eager_us, compile_us, speedup_eager, speedup_compile, floor_fraction, speedup, device_key,
        id AS evaluation_id, created_at AS judged_at
    FROM evaluations
    QUALIFY row_number() OVER (
        PARTITION BY kernel_id, problem_id, device_key ORDER BY trust_rank(trust) DESC, created_at DESC, id
    ) = 1
    UNION ALL BY NAME
    SELECT
        s.kernel_id, s.problem_id, f.functional_id, 'claimed' AS trust, s.warning, '' AS label, '' AS "precision",
        '' AS device_name, '' AS device_arch, '' AS device_key, s.judged_at
    FROM (
        SELECT candidate_id AS kernel_id, problem_id, max(warning) AS warning, min(created_at) AS judged_at
        FROM claims
        WHERE correct IS DISTINCT FROM false
        GROUP BY candidate_id, problem_id
    ) AS s
    JOIN (
        SELECT problem_id, id AS functional_id
        FROM functionals
        QUALIFY row_number() OVER (PARTITION BY problem_id ORDER BY len(shapes) > 0 DESC, id) = 1
    ) AS f ON f.problem_id = s.problem_id
    ANTI JOIN evaluations AS judged ON judged.kernel_id = s.kernel_id AND judged.problem_id = s.problem_id
) AS e
JOIN kernels AS k ON k.id = e.kernel_id
JOIN candidates AS c ON c.id = k.id
JOIN problems AS p ON p.id = e.problem_id
JOIN functionals AS f ON f.id = e.functional_id
JOIN ideas AS i ON i.id = k.idea_id
LEFT JOIN retracted AS r ON r.kernel_id = k.id;
COMMENT ON VIEW kernel_cards IS 'One row per kernel, problem and device: the most trusted evaluation, and of equally trusted ones the newest. Kernels that are only claimed have no device and no figures here; see claims.';

CREATE VIEW claims_against_measurements AS
SELECT
    c.importer, c.origin, c.candidate_id AS kernel_id, p.name AS problem_name, c.correct AS claimed_correct,
    c.speedup_eager AS claimed_speedup_eager, c.speedup_compile AS claimed_speedup_compile,
    e.trust, e.device_name AS measured_on, e.speedup_eager AS measured_speedup_eager,
    e.speedup_compile AS measured_speedup_compile, a.verdict, a.reason
FROM claims AS c
JOIN problems AS p ON p.id = c.problem_id
LEFT JOIN (
    SELECT * FROM evaluations
    WHERE trust IN ('verified', 'confirmed')
    QUALIFY row_number() OVER (
        PARTITION BY kernel_id, problem_id ORDER BY trust_rank(trust) DESC, created_at DESC, id
    ) = 1
) AS e ON e.kernel_id = c.candidate_id AND e.problem_id = c.problem_id
LEFT JOIN (
    SELECT candidate_id, problem_id, verdict, reason
    FROM attempt_results
    QUALIFY row_number() OVER (PARTITION BY candidate_id, problem_id ORDER BY created_at DESC, attempt_id) = 1
) AS a ON a.candidate_id = c.candidate_id AND a.problem_id = c.problem_id
WHERE c.candidate_id IS NOT NULL;
COMMENT ON VIEW claims_against_measurements IS 'Each imported claim beside what was found here, if it was judged here.';
