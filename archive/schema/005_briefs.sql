CREATE TABLE briefs (
    run_id VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    brief VARCHAR NOT NULL,
    attempts_seen INTEGER NOT NULL,
    calls_seen INTEGER NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE briefs IS 'What the writer was told each time it was asked, so that a killed run asks the same again and takes the replies that it has from llm_calls.';
COMMENT ON COLUMN briefs.run_id IS 'runs.id';
COMMENT ON COLUMN briefs.number IS '1, 2, 3... within the run';
COMMENT ON COLUMN briefs.brief IS 'the whole Brief as text, without its attempts, see eval/codec.py';
COMMENT ON COLUMN briefs.attempts_seen IS 'how many attempts of the run the writer knew: the first ones by number';
COMMENT ON COLUMN briefs.calls_seen IS 'how many calls of the run had come before: the first ones by position';
COMMENT ON COLUMN briefs.created_at IS 'when it was asked';

CREATE TABLE proposals (
    run_id VARCHAR NOT NULL,
    brief INTEGER NOT NULL,
    drafts VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE proposals IS 'What the writer drafted for a brief, once it had said all.';
COMMENT ON COLUMN proposals.run_id IS 'runs.id';
COMMENT ON COLUMN proposals.brief IS 'briefs.number';
COMMENT ON COLUMN proposals.drafts IS 'the drafts that are new to the run, as text, see eval/codec.py';
COMMENT ON COLUMN proposals.created_at IS 'when it was done';
