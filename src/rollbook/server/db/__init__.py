"""Both databases: opening them, transactions, tables, rows, migrations and value checks. A transaction always names its
tenant. Queries live in `queries`; nothing here imports another sub-room."""
