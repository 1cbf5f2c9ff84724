-- All views and macros as they are now, made anew after any step: a step changes tables, and whoever changes a view
-- changes it here and appends a step.

CREATE OR REPLACE MACRO trust_rank(trust) AS list_position(['claimed', 'compiled', 'verified', 'confirmed'], trust);
COMMENT ON MACRO trust_rank IS '1 for claimed, 4 for confirmed.';

CREATE OR REPLACE MACRO judged_labels(judged) AS json_extract_string(judged::JSON, '$.verdict.labels[*]');
COMMENT ON MACRO judged_labels IS 'The labels in a whole Judged record.';
CREATE OR REPLACE MACRO like_with_like("precision", judged) AS CASE
    WHEN "precision" = 'strict' THEN true
    WHEN "precision" IN ('split-precision', 'tf32')
    THEN coalesce(json_extract_string(judged::JSON, '$.verdict.baseline_precision') = 'tf32', false)
    ELSE false
END;
COMMENT ON MACRO like_with_like IS 'Whether a kernel is as exact as its baselines were allowed to be; see COMPARABLE in eval/records.py.';

CREATE OR REPLACE MACRO told_ratio(judged, ratio) AS json_extract_string(
    judged,
    '$.verdict.measurement.' || ratio || CASE
        WHEN json_extract_string(judged, '$.verdict.measurement.confirmed') = 'true' THEN '.median' ELSE '.low'
    END
)::DOUBLE;
COMMENT ON MACRO told_ratio IS 'What is shown of a ratio in a whole Judged record: its median where it is confirmed, else the lower end of its interval.';

CREATE OR REPLACE MACRO told_floor(fraction) AS CASE WHEN fraction > 1 THEN NULL ELSE fraction END;
COMMENT ON MACRO told_floor IS 'What is shown of a floor_fraction: null above 1, where the floor is of another machine or was measured on a busy one.';

CREATE OR REPLACE MACRO barring(labels) AS list_filter(
    labels,
    lambda label: (
        starts_with(label, 'suspicious') OR starts_with(label, 'degenerate problem') OR starts_with(label, 'fragile')
    ) AND label NOT IN (
        'fragile: tiny', 'fragile: wide integers', 'fragile: ignored targets', 'fragile: indices from the end',
        'fragile: initcheck'
    )
);
COMMENT ON MACRO barring IS 'Those labels that keep a kernel off the leaderboard.';

CREATE OR REPLACE MACRO lineage_of(kernel) AS TABLE
WITH RECURSIVE up(id, distance) USING KEY (id) AS (
    SELECT kernel::VARCHAR, 0
    UNION
    SELECT DISTINCT edges.source, up.distance + 1
    FROM up
    JOIN edges ON edges.child = up.id
    WHERE NOT EXISTS (SELECT 1 FROM recurring.up AS known WHERE known.id = edges.source)
)
SELECT edges.child, edges.source, edges.relation, up.distance + 1 AS distance
FROM up
JOIN edges ON edges.child = up.id
ORDER BY distance, child, relation, source;
COMMENT ON MACRO TABLE lineage_of IS 'All edges above a kernel, with their distance: FROM lineage_of(''k_...'') ORDER BY distance.';

CREATE OR REPLACE MACRO descendants_of(kernel) AS TABLE
WITH RECURSIVE down(id, distance) USING KEY (id) AS (
    SELECT kernel::VARCHAR, 0
    UNION
    SELECT DISTINCT edges.child, down.distance + 1
    FROM down
    JOIN edges ON edges.source = down.id
    WHERE NOT EXISTS (SELECT 1 FROM recurring.down AS known WHERE known.id = edges.child)
)
SELECT edges.child, edges.source, edges.relation, down.distance + 1 AS distance
FROM down
JOIN edges ON edges.source = down.id
ORDER BY distance, child, relation, source;
COMMENT ON MACRO TABLE descendants_of IS 'All edges below a kernel, with their distance.';

CREATE OR REPLACE VIEW retracted AS
SELECT kernel_id, string_agg(reason, '; ' ORDER BY created_at, reason) AS reason
FROM retractions
GROUP BY kernel_id;
COMMENT ON VIEW retracted IS 'Retracted kernels with all reasons in one line.';
COMMENT ON COLUMN retracted.reason IS 'all reasons, oldest first';

CREATE OR REPLACE VIEW stale AS
SELECT evaluation_id, outcome, reason, attempt_id, created_at
FROM rechecks
QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY created_at DESC, attempt_id) = 1 AND outcome IN ('slower', 'fails');
COMMENT ON VIEW stale IS 'Evaluations that did not hold when their kernel was judged again.';
COMMENT ON COLUMN stale.evaluation_id IS 'evaluations.id';
COMMENT ON COLUMN stale.reason IS 'a sentence';
COMMENT ON COLUMN stale.created_at IS 'when it was judged again';

CREATE OR REPLACE VIEW only_claimed AS
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
    coalesce(e.stated_trust = 'verified', false) AS at_least,
    CASE
        WHEN r.reason IS NOT NULL THEN 'retracted: ' || r.reason
        WHEN e.stale <> '' THEN 'stale: ' || e.stale
        WHEN e.trust = 'claimed' THEN 'claimed, not judged here'
        WHEN e.trust = 'compiled' THEN 'only built: the device it is for was not there'
        ELSE coalesce(array_to_string(barring(e.labels), '; '), '')
    END AS unranked
FROM (
    SELECT
        * EXCLUDE (
            id, created_at, speedup, speedup_eager, speedup_compile, floor_fraction, told, told_eager, told_compile,
            told_floor
        ),
        told AS speedup, told_eager AS speedup_eager, told_compile AS speedup_compile, told_floor AS floor_fraction,
        id AS evaluation_id, created_at AS judged_at, '' AS warning
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
COMMENT ON COLUMN kernel_cards.operators IS 'operators of the graph, as names of ATen';
COMMENT ON COLUMN kernel_cards.dtypes IS 'dtypes of its tensors';
COMMENT ON COLUMN kernel_cards.device_key IS 'd_ and a hash of backend, device name and architecture';
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
COMMENT ON COLUMN kernel_cards.speedup IS 'over the better baseline: confirmed, else the lower end of the interval';
COMMENT ON COLUMN kernel_cards.speedup_eager IS 'over eager: confirmed, else the lower end of the interval';
COMMENT ON COLUMN kernel_cards.speedup_compile IS 'over torch.compile: confirmed, else the lower end of the interval';
COMMENT ON COLUMN kernel_cards.floor_fraction IS 'floor over measured time; null where the kernel was faster than the floor, which is none then';
COMMENT ON COLUMN kernel_cards.at_least IS 'whether the speed-ups are lower ends of intervals, since nobody confirmed them';
COMMENT ON COLUMN kernel_cards.unranked IS 'why it has no place on the leaderboard, or empty';

CREATE OR REPLACE VIEW leaderboard AS
SELECT
    row_number() OVER (PARTITION BY problem_id, device_key ORDER BY speedup DESC, candidate_us, id) AS place,
    problem_id, problem_name, device_key, device_name, device_arch, id AS kernel_id, backend, tier, trust, label,
    writer, model, candidate_us, eager_us, compile_us, speedup_eager, speedup_compile, speedup, floor_fraction,
    "precision", labels, at_least
FROM kernel_cards
WHERE unranked = '';
COMMENT ON VIEW leaderboard IS 'Verified kernels in order of speed-up, per problem and device. Retracted, stale and suspicious ones and those of degenerate problems are in `unranked`.';
COMMENT ON COLUMN leaderboard.device_key IS 'd_ and a hash of backend, device name and architecture';
COMMENT ON COLUMN leaderboard.place IS '1 is the fastest for the problem on the device';
COMMENT ON COLUMN leaderboard.speedup IS 'over the better baseline: confirmed, else the lower end of the interval';
COMMENT ON COLUMN leaderboard.at_least IS 'whether the speed-ups are lower ends of intervals, since nobody confirmed them';
COMMENT ON COLUMN leaderboard.model IS 'the LLM, or empty';

CREATE OR REPLACE VIEW best_per_graph_key AS
SELECT graph_key, device_key, device_name, id AS kernel_id, problem_id, problem_name, backend, tier, trust, speedup
FROM kernel_cards
WHERE unranked = ''
QUALIFY row_number() OVER (
    PARTITION BY graph_key, device_key ORDER BY trust_rank(trust) DESC, speedup DESC, id
) = 1;
COMMENT ON VIEW best_per_graph_key IS 'The best kernel for each graph, whatever its sizes, per device; never one of `unranked`.';
COMMENT ON COLUMN best_per_graph_key.device_key IS 'd_ and a hash of backend, device name and architecture';

CREATE OR REPLACE VIEW ancestry AS
WITH RECURSIVE up(kernel_id, ancestor_id, distance) USING KEY (kernel_id, ancestor_id) AS (
    SELECT DISTINCT child, source, 1 FROM edges
    UNION
    SELECT DISTINCT up.kernel_id, edges.source, up.distance + 1
    FROM up
    JOIN edges ON edges.child = up.ancestor_id
    WHERE NOT EXISTS (
        SELECT 1 FROM recurring.up AS known
        WHERE known.kernel_id = up.kernel_id AND known.ancestor_id = edges.source
    )
)
SELECT kernel_id, ancestor_id, distance FROM up WHERE kernel_id <> ancestor_id;
COMMENT ON VIEW ancestry IS 'Lineage, followed to the end: every candidate with every ancestor. For one kernel `lineage_of` is quicker.';
COMMENT ON COLUMN ancestry.kernel_id IS 'candidates.id: failed candidates have ancestors too';
COMMENT ON COLUMN ancestry.ancestor_id IS 'candidates.id, or for an import any name of the origin';
COMMENT ON COLUMN ancestry.distance IS '1 is a direct source';

CREATE OR REPLACE VIEW attempt_results AS
SELECT
    a.id AS attempt_id, a.run_id, a.number, a.round, f.problem_id, p.name AS problem_name, f.graph_key,
    a.candidate_id, c.tier, c.backend, a.verdict, a.reason, e.told AS speedup, e.trust, e.label,
    a.writer, a.model, i.text AS idea, a.exemplars, a.cost_usd, a.seconds, a.created_at, e.labels,
    CASE
        WHEN r.reason IS NOT NULL THEN 'retracted: ' || r.reason
        WHEN s.reason IS NOT NULL THEN 'stale: ' || s.reason
        ELSE coalesce(array_to_string(barring(e.labels), '; '), '')
    END AS barred,
    coalesce(a.verdict = 'passed' AND e.told > 1 AND barred = '', false) AS won,
    coalesce(e.stated_trust = 'verified', false) AS at_least, e."precision",
    coalesce(like_with_like(e."precision", e.judged), false) AS like_with_like
FROM attempts AS a
JOIN functionals AS f ON f.id = a.functional_id
JOIN problems AS p ON p.id = f.problem_id
JOIN candidates AS c ON c.id = a.candidate_id
JOIN ideas AS i ON i.id = a.idea_id
LEFT JOIN evaluations AS e ON e.id = a.evaluation_id
LEFT JOIN retracted AS r ON r.kernel_id = a.candidate_id
LEFT JOIN stale AS s ON s.evaluation_id = a.evaluation_id;
COMMENT ON VIEW attempt_results IS 'Attempts with names and what they measured, ready to read.';
COMMENT ON COLUMN attempt_results.reason IS 'why it failed; empty when it passed';
COMMENT ON COLUMN attempt_results.model IS 'the LLM, or empty';
COMMENT ON COLUMN attempt_results.idea IS 'what was tried, in plain English';
COMMENT ON COLUMN attempt_results.seconds IS 'from draft to verdict';
COMMENT ON COLUMN attempt_results.created_at IS 'when the verdict came';
COMMENT ON COLUMN attempt_results.won IS 'passed, faster than the better baseline, and not barred';
COMMENT ON COLUMN attempt_results.speedup IS 'over the better baseline: confirmed, else the lower end of the interval';
COMMENT ON COLUMN attempt_results.at_least IS 'whether the speed-up is the lower end of an interval, since nothing confirmed it';
COMMENT ON COLUMN attempt_results.like_with_like IS 'whether it is as exact as its baselines were allowed to be';
COMMENT ON COLUMN attempt_results.barred IS 'why a pass counts for nothing (retracted, stale, suspicious, fragile, degenerate problem), or empty';

CREATE OR REPLACE VIEW candidate_results AS
SELECT *
FROM attempt_results
QUALIFY row_number() OVER (PARTITION BY run_id, problem_id, candidate_id ORDER BY number DESC) = 1;
COMMENT ON VIEW candidate_results IS 'The last attempt on each candidate of a run: a confirmation stands for what it confirmed, and counts as no further attempt or win.';
COMMENT ON COLUMN candidate_results.reason IS 'why it failed; empty when it passed';
COMMENT ON COLUMN candidate_results.model IS 'the LLM, or empty';
COMMENT ON COLUMN candidate_results.idea IS 'what was tried, in plain English';
COMMENT ON COLUMN candidate_results.speedup IS 'over the better baseline: confirmed, else the lower end of the interval';
COMMENT ON COLUMN candidate_results.at_least IS 'whether the speed-up is the lower end of an interval, since nothing confirmed it';
COMMENT ON COLUMN candidate_results.seconds IS 'of this attempt, from draft to verdict';
COMMENT ON COLUMN candidate_results.created_at IS 'when the verdict came';
COMMENT ON COLUMN candidate_results.won IS 'passed, faster than the better baseline, and not barred';
COMMENT ON COLUMN candidate_results.like_with_like IS 'whether it is as exact as its baselines were allowed to be';
COMMENT ON COLUMN candidate_results.barred IS 'why a pass counts for nothing (retracted, stale, suspicious, fragile, degenerate problem), or empty';

CREATE OR REPLACE VIEW exemplars_shown AS
SELECT
    x.exemplar.kernel_id AS kernel_id, x.exemplar."rank" AS "rank", x.exemplar.score AS score,
    x.attempt_id, x.run_id, x.number, x.problem_id, x.problem_name, x.candidate_id, x.verdict, x.speedup, x.won
FROM (
    SELECT *, unnest(exemplars) AS exemplar
    FROM candidate_results
) AS x;
COMMENT ON VIEW exemplars_shown IS 'Each kernel that a writer was shown, with what became of the candidate that it then wrote: the last judgement of it in the run, its confirmation if there was one.';
COMMENT ON COLUMN exemplars_shown.kernel_id IS 'kernels.id of the exemplar';
COMMENT ON COLUMN exemplars_shown."rank" IS 'its place among those shown';
COMMENT ON COLUMN exemplars_shown.score IS 'as retrieval gave it';
COMMENT ON COLUMN exemplars_shown.candidate_id IS 'candidates.id of what was written';
COMMENT ON COLUMN exemplars_shown.won IS 'passed, faster than the better baseline, and not barred';

CREATE OR REPLACE VIEW exemplar_credit AS
SELECT
    kernel_id,
    count(*) AS shown,
    count(*) FILTER (verdict = 'passed') AS passed,
    count(*) FILTER (won) AS won,
    median(speedup) FILTER (verdict = 'passed') AS median_speedup
FROM exemplars_shown
GROUP BY kernel_id;
COMMENT ON VIEW exemplar_credit IS 'How often a kernel was shown to a writer, and what became of those candidates.';
COMMENT ON COLUMN exemplar_credit.shown IS 'candidates whose writer saw it';
COMMENT ON COLUMN exemplar_credit.passed IS 'of these, how many were right';
COMMENT ON COLUMN exemplar_credit.won IS 'and how many faster than the better baseline, none of them barred';
COMMENT ON COLUMN exemplar_credit.median_speedup IS 'of those that were right';

CREATE OR REPLACE MACRO merit(trust, label, like_with_like, speedup) AS {
    'confirmed': trust = 'confirmed',
    'claims': like_with_like AND label IN ('custom kernel', 'fused + library'),
    'like_with_like': like_with_like,
    'speedup': speedup
};
COMMENT ON MACRO merit IS 'What orders the kernels of a run: confirmed first, then what may claim a speed, then what is as exact as its baselines, then speed.';

CREATE OR REPLACE VIEW run_summary AS
SELECT
    r.id AS run_id, r.command, r.problem_name, r.started_at, r.status,
    coalesce(a.attempts, 0) AS attempts,
    coalesce(a.passed, 0) AS passed,
    coalesce(a.verified_kernels, 0) AS verified_kernels,
    a.best_speedup,
    coalesce(a.best_at_least, false) AS best_at_least,
    coalesce(s.seconds, 0) AS seconds,
    CASE WHEN c.run_id IS NULL THEN 0.0 ELSE c.cost_usd END AS cost_usd,
    CASE WHEN c.run_id IS NULL THEN 0.0 ELSE c.cost_usd END / nullif(a.verified_kernels, 0) AS cost_per_verified_kernel
FROM runs AS r
LEFT JOIN (
    SELECT
        run_id, count(*) AS attempts, count(*) FILTER (verdict = 'passed') AS passed,
        count(DISTINCT candidate_id) FILTER (verdict = 'passed' AND barred = '') AS verified_kernels,
        max_by(speedup, merit(trust, label, like_with_like, speedup)) FILTER (verdict = 'passed' AND barred = '')
            AS best_speedup,
        max_by(at_least, merit(trust, label, like_with_like, speedup)) FILTER (verdict = 'passed' AND barred = '')
            AS best_at_least
    FROM candidate_results
    GROUP BY run_id
) AS a ON a.run_id = r.id
LEFT JOIN (SELECT run_id, sum(seconds) AS seconds FROM attempts GROUP BY run_id) AS s ON s.run_id = r.id
LEFT JOIN (
    SELECT run_id, CASE WHEN count(*) = count(cost_usd) THEN sum(cost_usd) END AS cost_usd
    FROM llm_calls
    GROUP BY run_id
) AS c ON c.run_id = r.id;
COMMENT ON VIEW run_summary IS 'What each run tried, won and paid for LLM calls. A cost is null when the price of a call is unknown.';
COMMENT ON COLUMN run_summary.attempts IS 'candidates judged; a confirmation is none of its own';
COMMENT ON COLUMN run_summary.passed IS 'of these, how many were right at last';
COMMENT ON COLUMN run_summary.verified_kernels IS 'distinct kernels that were right and are not barred';
COMMENT ON COLUMN run_summary.best_speedup IS 'of the run''s best kernel that is not barred, over the better baseline: confirmed, else the lower end of the interval';
COMMENT ON COLUMN run_summary.best_at_least IS 'whether that is the lower end of an interval';
COMMENT ON COLUMN run_summary.seconds IS 'of all attempts together';
COMMENT ON COLUMN run_summary.cost_per_verified_kernel IS 'US dollars for LLM calls by verified kernels; null when there is none';

CREATE OR REPLACE VIEW kernel_costs AS
SELECT
    candidate_id AS kernel_id, count(*) AS attempts,
    CASE WHEN count(*) = count(cost_usd) THEN sum(cost_usd) END AS cost_usd,
    sum(seconds) AS seconds
FROM attempts
WHERE candidate_id IN (SELECT id FROM kernels)
GROUP BY candidate_id;
COMMENT ON VIEW kernel_costs IS 'What it cost to write and judge each kernel; null when a price is unknown.';
COMMENT ON COLUMN kernel_costs.attempts IS 'how often it was judged';
COMMENT ON COLUMN kernel_costs.seconds IS 'of all these attempts together';

CREATE OR REPLACE VIEW fast_p AS
SELECT t.run_id, x.p, avg(coalesce(t.best > x.p, false)::INTEGER) AS share, count(*) AS problems
FROM (
    SELECT run_id, problem_id, max(speedup) FILTER (verdict = 'passed' AND barred = '') AS best
    FROM candidate_results
    GROUP BY run_id, problem_id
) AS t, (SELECT unnest([0.0, 1.0, 1.5, 2.0, 3.0]::DOUBLE[]) AS p) AS x
GROUP BY t.run_id, x.p;
COMMENT ON VIEW fast_p IS 'Per run: the share of problems that were solved right and more than p times as fast as the better baseline, by kernels that are not barred.';
COMMENT ON COLUMN fast_p.p IS 'a speed-up';
COMMENT ON COLUMN fast_p.share IS 'of the problems of the run, between 0 and 1';
COMMENT ON COLUMN fast_p.problems IS 'of the run';

CREATE OR REPLACE VIEW unranked AS
SELECT
    unranked AS why, problem_id, problem_name, device_key, device_name, device_arch, id AS kernel_id, backend, tier,
    trust, label, writer, model, speedup, "precision", labels
FROM kernel_cards
WHERE unranked <> '';
COMMENT ON VIEW unranked IS 'Kernels that have no place on the leaderboard, each with the reason.';
COMMENT ON COLUMN unranked.device_key IS 'd_ and a hash of backend, device name and architecture';
COMMENT ON COLUMN unranked.why IS 'retracted, stale, claimed, only built, or the label that bars it';
COMMENT ON COLUMN unranked.model IS 'the LLM, or empty';

CREATE OR REPLACE VIEW claims_against_measurements AS
SELECT
    c.importer, c.origin, c.candidate_id AS kernel_id, p.name AS problem_name, c.correct AS claimed_correct,
    c.speedup_eager AS claimed_speedup_eager, c.speedup_compile AS claimed_speedup_compile,
    e.trust, e.device_name AS measured_on, e.told_eager AS measured_speedup_eager,
    e.told_compile AS measured_speedup_compile, a.verdict, a.reason
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
COMMENT ON COLUMN claims_against_measurements.origin IS 'where in the source it stands';
COMMENT ON COLUMN claims_against_measurements.claimed_correct IS 'as the source says; null when it does not';
COMMENT ON COLUMN claims_against_measurements.claimed_speedup_eager IS 'as the source says';
COMMENT ON COLUMN claims_against_measurements.claimed_speedup_compile IS 'as the source says';
COMMENT ON COLUMN claims_against_measurements.measured_on IS 'the device, for example NVIDIA H200';
COMMENT ON COLUMN claims_against_measurements.measured_speedup_eager IS 'over eager: confirmed, else the lower end of the interval';
COMMENT ON COLUMN claims_against_measurements.measured_speedup_compile IS 'over torch.compile: confirmed, else the lower end of the interval';
COMMENT ON COLUMN claims_against_measurements.verdict IS 'of the newest attempt here; null when nobody tried';
COMMENT ON COLUMN claims_against_measurements.reason IS 'a sentence; empty when it passed';
