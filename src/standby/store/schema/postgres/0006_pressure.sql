-- How hard a host is pressed, from where on that counts, and its budget of processors.
alter table hosts add column cpus double precision;
alter table hosts add column limits text not null default '{}';
alter table hosts add column pressure text not null default 'none' check (pressure in ('none', 'warning', 'critical'));
alter table hosts add column pressure_since bigint;
alter table hosts add column pressure_cause text;
alter table hosts add column calm_since bigint;
