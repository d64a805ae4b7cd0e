"""Background jobs: the scheduler, deliveries, the epoch mark and the health monitor."""
