"""Checking a maildir, and setting right what is surely right to be set right.

    findings = examine("spool")            # changes nothing; errors first
    repair("spool", findings)              # does what their remedies say where `repairable`

Both may be used beside a running pool and on a dead root, also on one that a mount refuses.

* **A listing is a hint.** Files move while they are listed, so whatever looks wrong is looked at again before it is
  reported: under the lock of its stream where it has one, else in repeated looks that go the way that jobs go. Locks
  are held for one file at a time, and one that is not to be had is itself a finding.
* **Nothing is changed without `repair`**, not even what a mount does by itself (making folders, sweeping tmp/). Only
  the lock files, which are never removed, may come into being.
* **No job's bytes are deleted.** A later copy of a job goes when the one that stays holds the same; what is no job is
  put aside in done/, as a drain would.
* **Names tell, where they can.** Open jobs and records are read, ended jobs only with `deep`.

    finding      the kinds, their words             look         a root opened to look, locks
    foundation   the root and its folders           inventory    one walk: what the filesystem knows of each file
    jobs         open jobs                          records      done/, intents, dossiers
    holders      leases                             checkpoints
    examine, repair
"""

from queuekit.backends.maildir.fsck.examine import examine
from queuekit.backends.maildir.fsck.finding import Finding, Repaired, Severity
from queuekit.backends.maildir.fsck.repair import repair

__all__ = ["Finding", "Repaired", "Severity", "examine", "repair"]
