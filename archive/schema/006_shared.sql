CREATE TABLE turn (
    id INTEGER NOT NULL,
    writes BIGINT NOT NULL
);
INSERT INTO turn VALUES (1, 0);
COMMENT ON TABLE turn IS 'One row, for archives that a server shares: a client that writes counts it up first, so that only one writes at a time and the others see that something changed.';
COMMENT ON COLUMN turn.id IS 'always 1';
COMMENT ON COLUMN turn.writes IS 'how many transactions of clients have written so far';

-- Nobody relies on it, and a client of DuckDB 1.5 that connects to a server stumbles over defaults that call a function.
ALTER TABLE evaluations ALTER COLUMN labels DROP DEFAULT;
