ALTER TABLE evaluations ADD COLUMN labels VARCHAR[] DEFAULT [];
UPDATE evaluations SET labels = json_extract_string(judged::JSON, '$.verdict.labels[*]');
COMMENT ON COLUMN evaluations.labels IS 'what else the judge remarked: nondeterministic, suspicious: ..., degenerate problem, ...';
CREATE TABLE rechecks (
    attempt_id VARCHAR NOT NULL,
    evaluation_id VARCHAR NOT NULL,
    outcome VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE rechecks IS 'What judging a kernel again said of its earlier evaluations. Only appended to; the newest row of an evaluation counts.';
COMMENT ON COLUMN rechecks.attempt_id IS 'attempts.id of the new judgement';
COMMENT ON COLUMN rechecks.evaluation_id IS 'evaluations.id of the earlier one';
COMMENT ON COLUMN rechecks.outcome IS 'holds, fails elsewhere (on another device than it was verified on), slower or fails; the last two make it stale';
COMMENT ON COLUMN rechecks.reason IS 'a sentence; empty when it holds';
COMMENT ON COLUMN rechecks.created_at IS 'when it was judged again';
