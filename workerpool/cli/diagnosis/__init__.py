"""What `workerpool doctor` knows: facts about one store and its machine, and what they mean.

For each thing there are two modules. One has the facts as a frozen value and `judge`, which turns them into findings
and does no I/O; its twin `look_…` gathers the facts, and changes nothing (on a folder it makes a file in tmp/ to try
the filesystem with, and removes it).

    machine      look_machine      this machine, the configuration, the disk behind the store
    tenants      look_tenants      the pools and leases of the store
    folder       look_folder       a store that is a folder
    sqlite       look_sqlite       one in an SQLite file
    postgres     look_postgres     one in PostgreSQL
"""
