CREATE TABLE techniques (
    id VARCHAR NOT NULL,
    title VARCHAR NOT NULL,
    advice VARCHAR NOT NULL,
    bottlenecks VARCHAR[] NOT NULL,
    backends VARCHAR[] NOT NULL,
    operators VARCHAR[] NOT NULL,
    dtypes VARCHAR[] NOT NULL,
    architectures VARCHAR[] NOT NULL,
    sizes VARCHAR NOT NULL,
    signs VARCHAR[] NOT NULL,
    origin VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE techniques IS 'Cards of technique: what helps against which bottleneck. Never changed: a revised card is another row, and the newest of a title counts. What they are worth follows from technique_evidence and from the attempts that were shown them.';
COMMENT ON COLUMN techniques.id IS 't_ and a hash of all else but the time';
COMMENT ON COLUMN techniques.title IS 'what to do, in a line';
COMMENT ON COLUMN techniques.advice IS 'how, in a few lines';
COMMENT ON COLUMN techniques.bottlenecks IS 'memory, arithmetic, library, overhead; empty for any';
COMMENT ON COLUMN techniques.backends IS 'cpu, cuda';
COMMENT ON COLUMN techniques.operators IS 'families of operators and operators that it is for; empty for any';
COMMENT ON COLUMN techniques.dtypes IS 'dtypes that it is for; empty for any';
COMMENT ON COLUMN techniques.architectures IS 'beginnings of device_arch that it needs; empty for any';
COMMENT ON COLUMN techniques.sizes IS 'at which sizes, in words; or empty';
COMMENT ON COLUMN techniques.signs IS 'regular expressions: a source where any is found uses it';
COMMENT ON COLUMN techniques.origin IS 'seed: written down beforehand; lineage: drawn from what a child gained over its parent';
COMMENT ON COLUMN techniques.created_at IS 'when it was first kept here';

CREATE TABLE technique_evidence (
    technique_id VARCHAR NOT NULL,
    child VARCHAR NOT NULL,
    parent VARCHAR NOT NULL,
    device_key VARCHAR NOT NULL,
    gain DOUBLE NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE technique_evidence IS 'Kernels that use a technique where the one that they were made from does not, both timed on the same problem and device.';
COMMENT ON COLUMN technique_evidence.technique_id IS 'techniques.id';
COMMENT ON COLUMN technique_evidence.child IS 'candidates.id of the kernel that uses it';
COMMENT ON COLUMN technique_evidence.parent IS 'candidates.id of the one that it was made from';
COMMENT ON COLUMN technique_evidence.device_key IS 'as in evaluations';
COMMENT ON COLUMN technique_evidence.gain IS 'how many times as fast as the parent; below 1 it did not hold';
COMMENT ON COLUMN technique_evidence.created_at IS 'when it was found';

ALTER TABLE attempts ADD COLUMN techniques VARCHAR[];
COMMENT ON COLUMN attempts.techniques IS 'techniques.id of the cards that the writer was shown; null before there were any. A card may be of another archive, where the writer was';
