CREATE TABLE rounds (
    run_id VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    brief VARCHAR NOT NULL,
    attempts_seen INTEGER NOT NULL,
    calls_seen INTEGER NOT NULL,
    created_at VARCHAR NOT NULL,
    PRIMARY KEY (run_id, number)
);
COMMENT ON TABLE rounds IS 'What the writer was told at the start of each round, so that a killed run asks the same again and takes the replies that it has from llm_calls.';
COMMENT ON COLUMN rounds.run_id IS 'runs.id';
COMMENT ON COLUMN rounds.number IS '1, 2, 3... within the run';
COMMENT ON COLUMN rounds.brief IS 'the whole Brief as text, without its attempts, see eval/codec.py';
COMMENT ON COLUMN rounds.attempts_seen IS 'how many attempts of the run the writer knew: the first ones by number';
COMMENT ON COLUMN rounds.calls_seen IS 'how many calls of the run had come before: the first ones by position';
COMMENT ON COLUMN rounds.created_at IS 'when it began';

CREATE TABLE proposals (
    run_id VARCHAR NOT NULL,
    round INTEGER NOT NULL,
    drafts VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL,
    PRIMARY KEY (run_id, round)
);
COMMENT ON TABLE proposals IS 'What the writer drafted in a round, once it had said all, and before any of it was judged.';
COMMENT ON COLUMN proposals.run_id IS 'runs.id';
COMMENT ON COLUMN proposals.round IS 'rounds.number';
COMMENT ON COLUMN proposals.drafts IS 'the drafts that are new to the run, as text, see eval/codec.py';
COMMENT ON COLUMN proposals.created_at IS 'when it was done';
