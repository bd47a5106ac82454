"""pysqlite3 is the standard library's sqlite3 around an SQLite of its own; its classes too are its own at run time."""

from sqlite3 import *
