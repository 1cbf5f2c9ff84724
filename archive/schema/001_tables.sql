CREATE TABLE problems (
    id VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE problems IS 'A problem file as it was given.';
COMMENT ON COLUMN problems.id IS 'p_ and a hash of the source';
COMMENT ON COLUMN problems.name IS 'the name under which it was first seen';
COMMENT ON COLUMN problems.source IS 'Python in KernelBench form';
COMMENT ON COLUMN problems.created_at IS 'ISO 8601, UTC (like every time here)';

CREATE TABLE functionals (
    id VARCHAR NOT NULL,
    problem_id VARCHAR NOT NULL,
    graph_key VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    operators VARCHAR[] NOT NULL,
    ranks INTEGER[] NOT NULL,
    dtypes VARCHAR[] NOT NULL,
    shapes BIGINT[][] NOT NULL,
    record VARCHAR NOT NULL
);
COMMENT ON TABLE functionals IS 'A problem as a parameterized call, with its features. One problem may have several, when the functionalizer changes.';
COMMENT ON COLUMN functionals.id IS 'f_ and a hash of the record';
COMMENT ON COLUMN functionals.problem_id IS 'problems.id';
COMMENT ON COLUMN functionals.graph_key IS 'the same for the same graph at other sizes';
COMMENT ON COLUMN functionals.source IS 'readable Python that defines module_fn';
COMMENT ON COLUMN functionals.operators IS 'ATen names without overloads, sorted, with repeats';
COMMENT ON COLUMN functionals.ranks IS 'ranks of the tensor inputs, in order';
COMMENT ON COLUMN functionals.dtypes IS 'distinct dtypes of arguments and outputs';
COMMENT ON COLUMN functionals.shapes IS 'shapes of the tensor arguments, in order';
COMMENT ON COLUMN functionals.record IS 'the whole FunctionalProblem as text, see eval/codec.py';

CREATE TABLE candidates (
    id VARCHAR NOT NULL,
    tier VARCHAR NOT NULL,
    backend VARCHAR NOT NULL,
    source VARCHAR NOT NULL
);
COMMENT ON TABLE candidates IS 'Every source text that was ever judged or imported, failed ones too.';
COMMENT ON COLUMN candidates.id IS 'k_ and a hash of backend, tier and source; the id of the kernel, if it became one';
COMMENT ON COLUMN candidates.tier IS 'kernel, composed or module';
COMMENT ON COLUMN candidates.backend IS 'cpu or cuda';
COMMENT ON COLUMN candidates.source IS 'the text as judged';

CREATE TABLE ideas (
    id VARCHAR NOT NULL,
    problem_id VARCHAR NOT NULL,
    text VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE ideas IS 'What was tried on a problem, in plain English.';
COMMENT ON COLUMN ideas.id IS 'i_ and a hash of problem and text';
COMMENT ON COLUMN ideas.problem_id IS 'problems.id';
COMMENT ON COLUMN ideas.text IS 'one sentence; empty when the writer gave none';
COMMENT ON COLUMN ideas.created_at IS 'when it was first tried';

CREATE TABLE kernels (
    id VARCHAR NOT NULL,
    functional_id VARCHAR NOT NULL,
    idea_id VARCHAR NOT NULL,
    writer VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    licence VARCHAR NOT NULL,
    attribution VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE kernels IS 'Candidates that at least built. What they achieved is in evaluations.';
COMMENT ON COLUMN kernels.id IS 'candidates.id';
COMMENT ON COLUMN kernels.functional_id IS 'functionals.id of the problem that it was first written for';
COMMENT ON COLUMN kernels.idea_id IS 'ideas.id';
COMMENT ON COLUMN kernels.writer IS 'llm, offline, scripted or import';
COMMENT ON COLUMN kernels.model IS 'the LLM, or empty';
COMMENT ON COLUMN kernels.licence IS 'of an imported kernel, as its source states it; empty for own work';
COMMENT ON COLUMN kernels.attribution IS 'whom to name for an imported kernel; empty for own work';
COMMENT ON COLUMN kernels.created_at IS 'when it was first archived, anywhere';

CREATE TABLE evaluations (
    id VARCHAR NOT NULL,
    kernel_id VARCHAR NOT NULL,
    problem_id VARCHAR NOT NULL,
    functional_id VARCHAR NOT NULL,
    trust VARCHAR NOT NULL,
    stated_trust VARCHAR NOT NULL,
    device_key VARCHAR NOT NULL,
    device_name VARCHAR NOT NULL,
    device_arch VARCHAR NOT NULL,
    torch VARCHAR NOT NULL,
    compiler VARCHAR NOT NULL,
    judge_version VARCHAR NOT NULL,
    label VARCHAR NOT NULL,
    "precision" VARCHAR NOT NULL,
    error_ratio DOUBLE,
    candidate_us DOUBLE,
    eager_us DOUBLE,
    compile_us DOUBLE,
    speedup_eager DOUBLE,
    speedup_compile DOUBLE,
    speedup DOUBLE,
    floor_us DOUBLE,
    floor_fraction DOUBLE,
    judged VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE evaluations IS 'What a kernel achieved on a problem, on a device, with a set of software. Only appended to; a repeated evaluation is another row.';
COMMENT ON COLUMN evaluations.id IS 'e_ and a hash of kernel, functional problem and judged';
COMMENT ON COLUMN evaluations.kernel_id IS 'kernels.id';
COMMENT ON COLUMN evaluations.problem_id IS 'problems.id';
COMMENT ON COLUMN evaluations.functional_id IS 'functionals.id';
COMMENT ON COLUMN evaluations.trust IS 'claimed (imported), compiled, verified, or confirmed (passed again in a fresh process)';
COMMENT ON COLUMN evaluations.stated_trust IS 'what the archive that made the evaluation said; differs from trust when imported without trusting it';
COMMENT ON COLUMN evaluations.device_key IS 'd_ and a hash of backend, device name and architecture';
COMMENT ON COLUMN evaluations.device_name IS 'for example NVIDIA H200';
COMMENT ON COLUMN evaluations.device_arch IS 'for example sm_90 or x86-64-v4';
COMMENT ON COLUMN evaluations.torch IS 'version of PyTorch';
COMMENT ON COLUMN evaluations.compiler IS 'name and version';
COMMENT ON COLUMN evaluations.judge_version IS 'version of the judging rules';
COMMENT ON COLUMN evaluations.label IS 'the kind of win: custom kernel, fused + library, ...; empty when it was not run';
COMMENT ON COLUMN evaluations."precision" IS 'strict, or the named lower class; empty when it was not run';
COMMENT ON COLUMN evaluations.error_ratio IS 'worst error over the error of PyTorch itself';
COMMENT ON COLUMN evaluations.candidate_us IS 'time of one call in microseconds';
COMMENT ON COLUMN evaluations.eager_us IS 'the same of eager PyTorch';
COMMENT ON COLUMN evaluations.compile_us IS 'the same of torch.compile; null when that failed';
COMMENT ON COLUMN evaluations.speedup_eager IS 'median of pair ratios over eager';
COMMENT ON COLUMN evaluations.speedup_compile IS 'median of pair ratios over torch.compile';
COMMENT ON COLUMN evaluations.speedup IS 'over the better of both';
COMMENT ON COLUMN evaluations.floor_us IS 'the physical floor of the problem on the device';
COMMENT ON COLUMN evaluations.floor_fraction IS 'floor over measured time; 1 is the speed of light';
COMMENT ON COLUMN evaluations.judged IS 'the whole Judged record as text, see eval/codec.py';
COMMENT ON COLUMN evaluations.created_at IS 'when it was judged';

CREATE TABLE edges (
    child VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    relation VARCHAR NOT NULL
);
COMMENT ON TABLE edges IS 'Lineage. Failed candidates have parents too, and may be parents.';
COMMENT ON COLUMN edges.child IS 'candidates.id';
COMMENT ON COLUMN edges.source IS 'candidates.id, or for an import any name of the origin';
COMMENT ON COLUMN edges.relation IS 'parent, crossover, retrieved, transplanted or imported';

CREATE TABLE runs (
    id VARCHAR NOT NULL,
    command VARCHAR NOT NULL,
    problem_name VARCHAR NOT NULL,
    settings VARCHAR NOT NULL,
    started_at VARCHAR NOT NULL,
    finished_at VARCHAR,
    status VARCHAR NOT NULL
);
COMMENT ON TABLE runs IS 'One session of generate, grow or eval.';
COMMENT ON COLUMN runs.id IS 'given by the run';
COMMENT ON COLUMN runs.command IS 'generate, grow, eval, ...';
COMMENT ON COLUMN runs.problem_name IS 'what it was asked to work on';
COMMENT ON COLUMN runs.settings IS 'JSON of what it was asked to do';
COMMENT ON COLUMN runs.started_at IS 'when it began';
COMMENT ON COLUMN runs.finished_at IS 'null while it runs, and for ever when it was killed';
COMMENT ON COLUMN runs.status IS 'running, finished, interrupted or failed';

CREATE TABLE attempts (
    id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    number INTEGER NOT NULL,
    round INTEGER NOT NULL,
    functional_id VARCHAR NOT NULL,
    candidate_id VARCHAR NOT NULL,
    idea_id VARCHAR NOT NULL,
    evaluation_id VARCHAR,
    verdict VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    judged VARCHAR NOT NULL,
    writer VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    exemplars STRUCT(kernel_id VARCHAR, "rank" INTEGER, score DOUBLE, reasons VARCHAR[])[] NOT NULL,
    parents STRUCT(child VARCHAR, source VARCHAR, relation VARCHAR)[] NOT NULL,
    call_ids VARCHAR[] NOT NULL,
    cost_usd DOUBLE,
    seconds DOUBLE NOT NULL,
    note VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE attempts IS 'Every judged candidate of every run, failures included.';
COMMENT ON COLUMN attempts.id IS 'a_ and a hash of run and number';
COMMENT ON COLUMN attempts.run_id IS 'runs.id';
COMMENT ON COLUMN attempts.number IS '1, 2, 3... within the run';
COMMENT ON COLUMN attempts.round IS 'round of the search';
COMMENT ON COLUMN attempts.functional_id IS 'functionals.id of the problem';
COMMENT ON COLUMN attempts.candidate_id IS 'candidates.id';
COMMENT ON COLUMN attempts.idea_id IS 'ideas.id';
COMMENT ON COLUMN attempts.evaluation_id IS 'evaluations.id; null when the candidate failed';
COMMENT ON COLUMN attempts.verdict IS 'passed, compiled, build_failed, wrong, crashed, timed_out or rejected';
COMMENT ON COLUMN attempts.reason IS 'a sentence; empty when it passed';
COMMENT ON COLUMN attempts.judged IS 'the whole Judged record as text, see eval/codec.py';
COMMENT ON COLUMN attempts.writer IS 'llm, offline, scripted or import';
COMMENT ON COLUMN attempts.model IS 'the LLM, or empty';
COMMENT ON COLUMN attempts.exemplars IS 'archived kernels that the writer was shown, with their rank and why';
COMMENT ON COLUMN attempts.parents IS 'its lineage as the writer stated it; edges holds the same';
COMMENT ON COLUMN attempts.call_ids IS 'llm_calls.id of the calls that led to it';
COMMENT ON COLUMN attempts.cost_usd IS 'null when the price is unknown';
COMMENT ON COLUMN attempts.seconds IS 'from draft to verdict';
COMMENT ON COLUMN attempts.note IS 'what the writer remarked';
COMMENT ON COLUMN attempts.created_at IS 'when the verdict came';

CREATE TABLE llm_calls (
    position BIGINT NOT NULL,
    id VARCHAR NOT NULL,
    run_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    purpose VARCHAR NOT NULL,
    prompt VARCHAR NOT NULL,
    reply VARCHAR NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    completion_tokens BIGINT NOT NULL,
    cost_usd DOUBLE,
    seconds DOUBLE NOT NULL,
    error VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE llm_calls IS 'Every request to a model, failed ones too.';
COMMENT ON COLUMN llm_calls.position IS 'order of arrival';
COMMENT ON COLUMN llm_calls.id IS 'given by the run';
COMMENT ON COLUMN llm_calls.run_id IS 'runs.id';
COMMENT ON COLUMN llm_calls.model IS 'provider and name';
COMMENT ON COLUMN llm_calls.purpose IS 'ideas, implement, repair, ...';
COMMENT ON COLUMN llm_calls.prompt IS 'exactly as sent';
COMMENT ON COLUMN llm_calls.reply IS 'exactly as received';
COMMENT ON COLUMN llm_calls.prompt_tokens IS 'as the provider counted';
COMMENT ON COLUMN llm_calls.completion_tokens IS 'as the provider counted';
COMMENT ON COLUMN llm_calls.cost_usd IS 'null when the price is unknown';
COMMENT ON COLUMN llm_calls.seconds IS 'from request to reply';
COMMENT ON COLUMN llm_calls.error IS 'empty when it succeeded';
COMMENT ON COLUMN llm_calls.created_at IS 'when it was sent';

CREATE TABLE embeddings (
    kernel_id VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    vector FLOAT[] NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE embeddings IS 'Vectors of kernels. The Chroma folder is a copy of this table and is rebuilt from it.';
COMMENT ON COLUMN embeddings.kernel_id IS 'kernels.id';
COMMENT ON COLUMN embeddings.model IS 'name of the embedding model';
COMMENT ON COLUMN embeddings.vector IS 'as the model gave it';
COMMENT ON COLUMN embeddings.created_at IS 'when it was embedded';

CREATE TABLE retractions (
    kernel_id VARCHAR NOT NULL,
    reason VARCHAR NOT NULL,
    created_at VARCHAR NOT NULL
);
COMMENT ON TABLE retractions IS 'Kernels that no longer count, and why. Their rows stay.';
COMMENT ON COLUMN retractions.kernel_id IS 'kernels.id';
COMMENT ON COLUMN retractions.reason IS 'a sentence';
COMMENT ON COLUMN retractions.created_at IS 'when it was retracted';
