"""Tables, units of work, locks, leases, outbox and migrations: the only modules that access the database.

No decisions are made here. Every state change goes through :meth:`~policy_service.storage.database.Database.write`,
and a response is sent only for what the database has committed.
"""
