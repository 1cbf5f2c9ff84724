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

CREATE VIEW only_claimed AS
SELECT
    s.kernel_id, s.problem_id, f.functional_id, concat_ws('; ', nullif(s.warning, ''), r.reason) AS warning, s.judged_at
FROM (
    SELECT candidate_id AS kernel_id, problem_id, max(warning) AS warning, min(created_at) AS judged_at
    FROM claims
    WHERE candidate_id IS NOT NULL AND correct IS DISTINCT FROM false
    GROUP BY candidate_id, problem_id
) AS s
JOIN (
    SELECT problem_id, id AS functional_id
    FROM functionals
    QUALIFY row_number() OVER (PARTITION BY problem_id ORDER BY len(shapes) > 0 DESC, id) = 1
) AS f ON f.problem_id = s.problem_id
LEFT JOIN (
    SELECT
        a.candidate_id, f.problem_id,
        max_by(concat('judged here: ', replace(a.verdict, '_', ' '), ', ', a.reason), a.created_at) AS reason
    FROM attempts AS a JOIN functionals AS f ON f.id = a.functional_id
    WHERE a.verdict NOT IN ('passed', 'compiled')
    GROUP BY a.candidate_id, f.problem_id
) AS r ON r.candidate_id = s.kernel_id AND r.problem_id = s.problem_id
ANTI JOIN evaluations ON evaluations.kernel_id = s.kernel_id AND evaluations.problem_id = s.problem_id;
COMMENT ON VIEW only_claimed IS 'Kernels on problems on which they never passed here, each with the functional form that is known best.';
COMMENT ON COLUMN only_claimed.functional_id IS 'functionals.id';
COMMENT ON COLUMN only_claimed.judged_at IS 'when it was imported';
COMMENT ON COLUMN only_claimed.warning IS 'what is known against it, from its source or from judging it here; or empty';

-- As before, with kernels that are only claimed: without a figure, so that nothing ranks by one.
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
    e.judged_at,
    e.labels,
    e.stale,
    CASE
        WHEN r.reason IS NOT NULL THEN 'retracted: ' || r.reason
        WHEN e.stale <> '' THEN 'stale: ' || e.stale
        WHEN e.trust = 'claimed' THEN 'claimed, not judged here'
        WHEN e.trust = 'compiled' THEN 'only built: the device it is for was not there'
        ELSE coalesce(array_to_string(barring(e.labels), '; '), '')
    END AS unranked
FROM (
    SELECT * EXCLUDE (id, created_at), id AS evaluation_id, created_at AS judged_at, '' AS warning
    FROM (
        SELECT evaluations.*, coalesce(stale.reason, '') AS stale
        FROM evaluations
        LEFT JOIN stale ON stale.evaluation_id = evaluations.id
        QUALIFY row_number() OVER (
            PARTITION BY kernel_id, problem_id, device_key
            ORDER BY stale.reason IS NOT NULL, trust_rank(trust) DESC, evaluations.created_at DESC, id
        ) = 1
    )
    UNION ALL BY NAME
    SELECT
        kernel_id, problem_id, functional_id, 'claimed' AS trust, '' AS label, '' AS "precision", '' AS device_name,
        '' AS device_arch, '' AS device_key, [] AS labels, '' AS stale, judged_at, warning
    FROM only_claimed
) AS e
JOIN kernels AS k ON k.id = e.kernel_id
JOIN candidates AS c ON c.id = k.id
JOIN problems AS p ON p.id = e.problem_id
JOIN functionals AS f ON f.id = e.functional_id
JOIN ideas AS i ON i.id = k.idea_id
LEFT JOIN retracted AS r ON r.kernel_id = k.id;
COMMENT ON VIEW kernel_cards IS 'One row per kernel, problem and device: of the evaluations that are not stale the most trusted, and of equally trusted ones the newest. A kernel that is only claimed has no device and no figures here.';
COMMENT ON COLUMN kernel_cards.id IS 'kernels.id';
COMMENT ON COLUMN kernel_cards.source IS 'the kernel as judged';
COMMENT ON COLUMN kernel_cards.functional_source IS 'what it computes, as readable Python';
COMMENT ON COLUMN kernel_cards.idea IS 'what was tried, in plain English';
COMMENT ON COLUMN kernel_cards.model IS 'the LLM, or empty';
COMMENT ON COLUMN kernel_cards.created_at IS 'when the kernel was first archived, anywhere';
COMMENT ON COLUMN kernel_cards.evaluation_id IS 'evaluations.id of the one that is shown; null when it is only claimed';
COMMENT ON COLUMN kernel_cards.judged_at IS 'when that was made, or the claim was imported';
COMMENT ON COLUMN kernel_cards.retracted IS 'why, or what is known against a kernel that is only claimed, or empty';
COMMENT ON COLUMN kernel_cards.stale IS 'why the evaluation no longer holds, or empty';
COMMENT ON COLUMN kernel_cards.unranked IS 'why it has no place on the leaderboard, or empty';

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
COMMENT ON COLUMN claims_against_measurements.claimed_correct IS 'as the source says; null when it does not';
COMMENT ON COLUMN claims_against_measurements.claimed_speedup_eager IS 'as the source says';
COMMENT ON COLUMN claims_against_measurements.claimed_speedup_compile IS 'as the source says';
COMMENT ON COLUMN claims_against_measurements.measured_on IS 'the device, for example NVIDIA H200';
COMMENT ON COLUMN claims_against_measurements.measured_speedup_eager IS 'median of pair ratios over eager';
COMMENT ON COLUMN claims_against_measurements.measured_speedup_compile IS 'median of pair ratios over torch.compile';
COMMENT ON COLUMN claims_against_measurements.verdict IS 'of the newest attempt here; null when nobody tried';
COMMENT ON COLUMN claims_against_measurements.reason IS 'a sentence; empty when it passed';
