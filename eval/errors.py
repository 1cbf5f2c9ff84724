"""Every exception of ours, as a tree, each with the module of `rag_kernels` where it stands.

    RagKernelsError                    what `except` of a caller needs
    ├── ProblemError                   here                     the problem file cannot be used
    │   ├── BaselineFailed             eval.sessions.reference_times   a baseline failed while it was timed
    │   ├── ModuleFails                ingest.functional.verify the module itself raises on its inputs
    │   ├── DoesNotRun                 ingest.functional.verify the emitted source raises
    │   └── Disagrees                  ingest.functional.verify the emitted source gives something else
    ├── OptionError                    options                  an option has a value that it cannot have
    ├── MachineError                   here                     this machine lacks something
    ├── ArchiveError                   archive.records          the archive cannot be used
    │   └── ImportRefused              ingest.importers.protocol   nothing there is what the importer reads
    ├── EmbedderError                  ingest.description.embedder the embedding model cannot be loaded
    ├── WriterError                    records                  the writer cannot go on
    │   ├── BudgetExhaustedError       budget                   no room for another call: a clean end
    │   └── NoDraftError               records                  models answered, and nothing of it was a kernel
    ├── SearchError                    app.data                 the search cannot be done on this page
    ├── SiteError                      app.site.write           a site cannot be written there
    ├── Refused                        agents.desk              an agent's request cannot be met
    ├── SetupError                     agents.setup_files       a project's file cannot be added to
    └── Internal                       here                     caught by our own modules; a fault if it gets further
        ├── Malformed                  eval.codec               a text is not of the class that was to be read
        ├── UnknownRequest             eval.messages.protocol   a worker has no answer for a request
        ├── NotShared                  eval.children.gpu.shared_memory   processes cannot share the GPU's memory
        ├── Forbidden                  eval.build.candidate_form   outside the subset of composed sources
        ├── ChannelClosed              eval.process.channel     the other process is gone
        ├── WorkerFailed               eval.process.workers     a child ended without a result
        ├── Stopped                    eval.sessions.candidate_failure   a trial ends early with its verdict
        ├── IndexDamaged               archive.index            the vector index must be opened or built again
        ├── NeedsFunctionalization     ingest.graphs.graph      the graph writes through a view
        ├── LostError                  cluster.records          a judge of a cluster is gone
        ├── RequestError               llm.request              a request to a model gave no usable answer
        ├── NotWritable                offline.graph.recorded_parts   a decomposition has what no graph says
        ├── Transforms                 ingest.graphs.recording  the forward computes gradients, or maps functions
        ├── TooManyCalls               ingest.graphs.stand_ins  the forward calls more functions than were allowed
        ├── IllFormed                  offline.ir.wellformed    a stage of the offline compiler made a wrong value
        └── Unfusable                  offline.ir.values        these values cannot share loops

Outside of `Internal` the message is a sentence that says what is wrong and what to do next; the command line shows it
alone. A candidate that fails is no exception: see the verdicts in `eval.records`.
"""

from __future__ import annotations


class RagKernelsError(Exception):
    """The root: whatever this package raises on purpose."""


class Internal(RagKernelsError):
    """Raised and caught between our own modules."""


class ProblemError(RagKernelsError):
    """The problem file cannot be used; the message is a sentence that says why and what to do next."""


class MachineError(RagKernelsError):
    """Something this machine lacks (compiler, GPU, disk); the message says what to do about it."""
