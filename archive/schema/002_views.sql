CREATE MACRO trust_rank(trust) AS list_position(['claimed', 'compiled', 'verified', 'confirmed'], trust);

CREATE VIEW retracted AS
SELECT kernel_id, string_agg(reason, '; ' ORDER BY created_at, reason) AS reason
FROM retractions
GROUP BY kernel_id;
COMMENT ON VIEW retracted IS 'Retracted kernels with all reasons in one line.';

CREATE VIEW kernel_cards AS
SELECT
    k.id,
    e.problem_id,
    p.name AS problem_name,
    c.source,
    f.source AS functional_source,
    c.tier,
    c.backend,
    e.trust,
    coalesce(r.reason, '') AS retracted,
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
    e.id AS evaluation_id,
    e.created_at AS judged_at
FROM (
    SELECT *
    FROM evaluations
    QUALIFY row_number() OVER (
        PARTITION BY kernel_id, problem_id, device_key ORDER BY trust_rank(trust) DESC, created_at DESC, id
    ) = 1
) AS e
JOIN kernels AS k ON k.id = e.kernel_id
JOIN candidates AS c ON c.id = k.id
JOIN problems AS p ON p.id = e.problem_id
JOIN functionals AS f ON f.id = e.functional_id
JOIN ideas AS i ON i.id = k.idea_id
LEFT JOIN retracted AS r ON r.kernel_id = k.id;
COMMENT ON VIEW kernel_cards IS 'One row per kernel, problem and device: the most trusted evaluation, and of equally trusted ones the newest.';

CREATE VIEW leaderboard AS
SELECT
    row_number() OVER (PARTITION BY problem_id, device_key ORDER BY speedup DESC, candidate_us, id) AS place,
    problem_id, problem_name, device_key, device_name, device_arch, id AS kernel_id, backend, tier, trust, label,
    writer, model, candidate_us, eager_us, compile_us, speedup_eager, speedup_compile, speedup, floor_fraction
FROM kernel_cards
WHERE retracted = '' AND trust IN ('verified', 'confirmed');
COMMENT ON VIEW leaderboard IS 'Verified kernels in order of speed-up, per problem and device.';

CREATE VIEW best_per_graph_key AS
SELECT graph_key, device_key, device_name, id AS kernel_id, problem_id, problem_name, backend, tier, trust, speedup
FROM kernel_cards
WHERE retracted = '' AND trust IN ('verified', 'confirmed')
QUALIFY row_number() OVER (
    PARTITION BY graph_key, device_key ORDER BY trust_rank(trust) DESC, speedup DESC, id
) = 1;
COMMENT ON VIEW best_per_graph_key IS 'The best kernel for each graph, whatever its sizes, per device.';

CREATE VIEW ancestry AS
WITH RECURSIVE up(kernel_id, ancestor_id) AS (
    SELECT child, source FROM edges
    UNION
    SELECT up.kernel_id, edges.source FROM up JOIN edges ON edges.child = up.ancestor_id
)
SELECT kernel_id, ancestor_id FROM up WHERE kernel_id <> ancestor_id;
COMMENT ON VIEW ancestry IS 'Every kernel with every ancestor, at any distance.';

CREATE VIEW attempt_results AS
SELECT
    a.id AS attempt_id, a.run_id, a.number, a.round, f.problem_id, p.name AS problem_name, f.graph_key,
    a.candidate_id, c.tier, c.backend, a.verdict, a.reason, e.speedup, e.trust, e.label,
    coalesce(a.verdict = 'passed' AND e.speedup > 1, false) AS won,
    a.writer, a.model, i.text AS idea, a.exemplars, a.cost_usd, a.seconds, a.created_at
FROM attempts AS a
JOIN functionals AS f ON f.id = a.functional_id
JOIN problems AS p ON p.id = f.problem_id
JOIN candidates AS c ON c.id = a.candidate_id
JOIN ideas AS i ON i.id = a.idea_id
LEFT JOIN evaluations AS e ON e.id = a.evaluation_id;
COMMENT ON VIEW attempt_results IS 'Attempts with names and what they measured, ready to read.';

CREATE VIEW exemplar_credit AS
SELECT
    x.kernel_id,
    count(*) AS shown,
    count(*) FILTER (verdict = 'passed') AS passed,
    count(*) FILTER (won) AS won,
    median(speedup) FILTER (verdict = 'passed') AS median_speedup
FROM (SELECT unnest(exemplars, recursive := true), verdict, won, speedup FROM attempt_results) AS x
GROUP BY x.kernel_id;
COMMENT ON VIEW exemplar_credit IS 'How often a kernel was shown to a writer, and what became of those attempts.';

CREATE VIEW run_summary AS
SELECT
    r.id AS run_id, r.command, r.problem_name, r.started_at, r.status,
    coalesce(a.attempts, 0) AS attempts,
    coalesce(a.passed, 0) AS passed,
    coalesce(a.verified_kernels, 0) AS verified_kernels,
    a.best_speedup,
    coalesce(a.seconds, 0) AS seconds,
    CASE WHEN c.run_id IS NULL THEN 0.0 ELSE c.cost_usd END AS cost_usd,
    CASE WHEN c.run_id IS NULL THEN 0.0 ELSE c.cost_usd END / nullif(a.verified_kernels, 0) AS cost_per_verified_kernel
FROM runs AS r
LEFT JOIN (
    SELECT
        run_id, count(*) AS attempts, count(*) FILTER (verdict = 'passed') AS passed,
        count(DISTINCT candidate_id) FILTER (verdict = 'passed') AS verified_kernels,
        max(speedup) AS best_speedup, sum(seconds) AS seconds
    FROM attempt_results
    GROUP BY run_id
) AS a ON a.run_id = r.id
LEFT JOIN (
    SELECT run_id, CASE WHEN count(*) = count(cost_usd) THEN sum(cost_usd) END AS cost_usd
    FROM llm_calls
    GROUP BY run_id
) AS c ON c.run_id = r.id;
COMMENT ON VIEW run_summary IS 'What each run tried, won and paid for LLM calls. A cost is null when the price of a call is unknown.';

CREATE VIEW kernel_costs AS
SELECT
    candidate_id AS kernel_id, count(*) AS attempts,
    CASE WHEN count(*) = count(cost_usd) THEN sum(cost_usd) END AS cost_usd,
    sum(seconds) AS seconds
FROM attempts
WHERE candidate_id IN (SELECT id FROM kernels)
GROUP BY candidate_id;
COMMENT ON VIEW kernel_costs IS 'What it cost to write and judge each kernel; null when a price is unknown.';

CREATE VIEW fast_p AS
SELECT t.run_id, x.p, avg(coalesce(t.best > x.p, false)::INTEGER) AS share, count(*) AS problems
FROM (
    SELECT run_id, problem_id, max(speedup) FILTER (verdict = 'passed') AS best
    FROM attempt_results
    GROUP BY run_id, problem_id
) AS t, (SELECT unnest([0.0, 1.0, 1.5, 2.0, 3.0]::DOUBLE[]) AS p) AS x
GROUP BY t.run_id, x.p;
COMMENT ON VIEW fast_p IS 'Per run: the share of problems that were solved right and more than p times as fast as the better baseline.';
