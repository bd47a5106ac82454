"""Is a handler safe to run twice? It is killed at many points, delivered again as a pool does it, its effects compared.

    campaign    the undisturbed runs, then a run for each point, until the first finding
    run         one run: a fresh folder, the job delivered until it has ended, the effects read
    rig         one delivery: a real worker (`workerpool.worker`) in a process group of its own, killed where asked
    trap        inside that worker: counts the lines of the user's files as they run, and kills at one of them
    points      where a worker can be killed: their names and their choice; no I/O
    effects     what a run left behind, as text by name
    difference  how two such readings differ, and what usually helps; no I/O

No store is touched: jobs are made here, and what they hand over is kept as a pool would send it. The handler's effects
are real, so they have to be where a fresh folder, or a command that sets them back, gives each run the same start.
"""
