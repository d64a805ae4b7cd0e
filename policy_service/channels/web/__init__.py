"""The queue people use: server-rendered pages and real forms that work without JavaScript."""
