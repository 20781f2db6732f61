-- Processors that an order itself asks for; null is what its pool says.
alter table orders add column cpus real;
