-- Who has a concurrency key: without the rank, so that a claim does not move the entry.
drop index orders_key;
create index orders_key on orders (project, concurrency_key) where concurrency_key is not null and ended_at is null;
