"""One read model of reviews, tasks and transactions."""
