"""What `workerpool bench` does: a store of its own is made (`scratch`), the queue is measured as a library (`phases`),
then with a pool (`pool`); `figures` is what comes out."""
