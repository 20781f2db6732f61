-- Events up to pruned_to are gone: a cursor from before it has missed some.
alter table meta add column pruned_to bigint not null default 0;
alter table meta add column orders_pruned bigint not null default 0;
alter table meta add column events_pruned bigint not null default 0;

-- What a person recognizes a key by; null for keys made before.
alter table keys add column last4 text;

-- What operators set over the configuration, by setting.
alter table pools add column overrides text not null default '{}';

-- The last measurement of each host: no version, no event.
create table readings (
    host text collate "C" not null primary key,
    at   bigint not null,
    body text not null
);
