"""Tables, units of work, leases, outbox and migrations: the only rooms that know a database is there.

Nothing here decides. Every change of state goes through
:meth:`~policy_service.storage.database.Database.write`, and an answer is given only for what the database
has committed.
"""
