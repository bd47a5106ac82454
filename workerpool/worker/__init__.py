"""The worker: one process that runs the user's handler, fed over a channel.

`context` is what a handler sees, `run` one run of it, `protocol` the frames, `loop` the process itself.
"""
